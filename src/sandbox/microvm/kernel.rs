//! Unpacks a kernel image, since under emulation a kernel that unpacks itself takes a second for it. Pure: no I/O.

use std::io::Read;

/// The signature in the header of an x86 kernel (`Documentation/arch/x86/boot.rst`).
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");

/// The first bytes of zstd data.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The packed part of an x86 kernel, unpacked; `None` for other kernels and formats, which QEMU takes unchanged.
pub(super) fn unpacked(image: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    image.get(MAGIC.0..)?.starts_with(MAGIC.1).then_some(())?;
    // In units of 512 bytes; the boot sector itself is not counted.
    let setup = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let (offset, length) = (number(0x248)?, number(0x24c)?);
    let packed = image.get(setup + offset..setup.checked_add(offset)?.checked_add(length)?)?;
    packed.starts_with(&ZSTD).then_some(())?;
    let mut kernel = Vec::new();
    // The unpacked size follows it, which is not a frame.
    let mut reader = zstd::Decoder::with_buffer(packed).ok()?.single_frame();
    reader.read_to_end(&mut kernel).ok()?;
    kernel.starts_with(b"\x7fELF").then_some(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_packed_as_it_says_is_unpacked() {
        let kernel = b"\x7fELF and much more".to_vec();
        let packed = zstd::encode_all(&kernel[..], 1).unwrap();
        let mut image = vec![0; 2 * 512 + 100];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&100_u32.to_le_bytes());
        let length = u32::try_from(packed.len() + 4).unwrap();
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image.extend(&packed);
        image.extend(u32::try_from(kernel.len()).unwrap().to_le_bytes());
        assert_eq!(unpacked(&image), Some(kernel));
        assert_eq!(unpacked(&image[..image.len() - 5]), None);
        assert_eq!(unpacked(&image[4..]), None);
        assert_eq!(unpacked(b""), None);
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(unpacked(&image), None);
    }
}

//! Has a function of an x86_64 file take `char` as unsigned, as all other CPUs that Kiln knows do. Works on bytes in memory: no
//! I/O.

use iced_x86::{Code, OpKind, Register};

use super::{
    Untold,
    image::{Image, exported},
    instructions::decode,
};

/// The second byte of `movsx` from a byte, and of `movzx`, whose first one is 0f.
const SIGNED: [u8; 2] = [0x0f, 0xbe];
const UNSIGNED: u8 = 0xb6;

/// The most bytes of prefixes before these.
const PREFIXES: usize = 4;

/// Changes the exported function `name` of `twin`, the only one in it that may read a signed byte. Returns the number of
/// instructions changed.
///
/// # Errors
///
/// The function is not there, another one reads signed bytes too, or it may read them in another way.
pub(super) fn unsigned(twin: &mut [u8], image: &Image, name: &str) -> Result<usize, Untold> {
    let function = exported(twin, &[name.to_owned()])?.pop();
    let function = function.ok_or_else(|| Untold::new(format!("it exports no {name}")))?;
    let mut places = Vec::new();
    let mut strange = None;
    for part in &image.code {
        decode(twin, part, |decoded| {
            let (instruction, at) = (&decoded.instruction, decoded.at);
            let is_within = function.contains(&instruction.ip());
            let reads_signed = matches!(
                instruction.code(),
                Code::Movsx_r16_rm8 | Code::Movsx_r32_rm8 | Code::Movsx_r64_rm8
            );
            let has_vectors = (0..instruction.op_count())
                .filter(|number| instruction.op_kind(*number) == OpKind::Register)
                .any(|number| is_vector(instruction.op_register(number)));
            if reads_signed && is_within {
                let bytes = &twin[at..at + instruction.len()];
                match bytes.windows(2).take(PREFIXES).position(|pair| pair == SIGNED) {
                    Some(place) => places.push(at + place + 1),
                    None => strange = Some("an instruction has an unknown form"),
                }
            } else if reads_signed {
                strange = Some("more than one function reads signed bytes");
            } else if is_within && has_vectors {
                strange = Some("it reads several bytes at once");
            }
        });
    }
    if let Some(why) = strange.or_else(|| places.is_empty().then_some("it reads no signed bytes")) {
        return Err(Untold::new(format!(
            "{name} cannot be told to take bytes as unsigned: {why}"
        )));
    }
    for place in &places {
        twin[*place] = UNSIGNED;
    }
    Ok(places.len())
}

fn is_vector(register: Register) -> bool {
    register.is_vector_register() || register.is_mm()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use kiln_records::arch::Arch;

    use super::*;

    /// A library with a hash of its `char`s, compiled here.
    fn library(source: &str) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("hash.c"), dir.path().join("hash.so"));
        fs_err::write(&from, source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-fno-tree-vectorize", "-nostdlib", "-o"]);
        assert!(compiler.args([&to, &from]).status().unwrap().success());
        fs_err::read(to).unwrap()
    }

    const HASH: &str = "int hash(char *text, int size) { unsigned value = 0x238F13AF * size;\n\
                        for (int at = 0; at < size; at++) value = value + (text[at] << (at * 5 % 24)); return value; }\n";

    #[test]
    fn a_hash_of_chars_takes_them_as_unsigned() {
        if Arch::host() != Arch::X86_64 {
            return;
        }
        let change = |file: &mut Vec<u8>| {
            let image = Image::read(file).unwrap();
            unsigned(file, &image, "hash")
        };
        let mut file = library(HASH);
        let before = file.clone();
        assert_eq!(change(&mut file), Ok(1));
        assert_eq!(before.iter().zip(&file).filter(|(old, new)| old != new).count(), 1);
        // Once more, there is nothing left to change.
        assert!(
            change(&mut file)
                .unwrap_err()
                .to_string()
                .contains("reads no signed bytes")
        );
        let mut two = library(&format!("{HASH}int other(signed char *text) {{ return *text; }}\n"));
        assert!(
            change(&mut two)
                .unwrap_err()
                .to_string()
                .contains("more than one function")
        );
        let mut none = library("int other(void) { return 1; }\n");
        assert!(change(&mut none).unwrap_err().to_string().contains("exports no hash"));
    }
}

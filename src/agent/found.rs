//! Says what was found in a recipe's archive, and turns the description into UTF-8. Touches that file only.
//!
//! Templates, kiwi and everything of Kiln's that reads the description afterwards have the same text of it.

use std::path::Path;

use kiln_records::{Code, Failure, Warning, archive::Contents, protocol::RecipeType, xml_text};

use super::{kiwi_config::CONFIG_BYTES, template};

/// The lines of the log about an archive.
pub(crate) fn lines(contents: &Contents, kind: RecipeType) -> Vec<String> {
    let mut lines = vec![format!(
        "{} entries, {} bytes unpacked",
        contents.entries, contents.bytes
    )];
    if contents.of_macos > 0 {
        lines.push(format!(
            "{} files of macOS are left out: ._*, .DS_Store, __MACOSX",
            contents.of_macos
        ));
    }
    if let Ok(place) = contents.place(kind) {
        let path = place.path().display().to_string();
        lines.push(format!("the description is {}", path.escape_debug()));
    }
    lines
}

/// What an archive cannot say.
pub(crate) fn warning(contents: &Contents) -> Option<Warning> {
    (contents.without_modes > 0).then(|| {
        let text = format!(
            "the archive says no modes of {} files, as with one that was made on Windows: none of them is a program or script that can \
             be run, unless config.sh makes it one",
            contents.without_modes
        );
        Warning::new(Code::RecipePaths, text)
    })
}

/// Rewrites the description as UTF-8, if it is in another encoding.
///
/// # Errors
///
/// `recipe_config_invalid` if its encoding is not known, or it is not in that encoding.
pub(crate) fn decode(recipe: &Path, name: &Path, say: &dyn Fn(&str)) -> Result<(), Failure> {
    let shown = name.display().to_string().escape_debug().to_string();
    let unreadable = |error: std::io::Error| Failure::io(format!("cannot read {shown}"), &error);
    // One that is no file of the recipe, or too large, is refused where it is read.
    let Ok(path) = template::inside(recipe, &name.to_string_lossy()) else {
        return Ok(());
    };
    if fs_err::metadata(&path).map_err(unreadable)?.len() > CONFIG_BYTES {
        return Ok(());
    }
    let bytes = fs_err::read(&path).map_err(unreadable)?;
    let decoded = xml_text::decode(&bytes).map_err(|why| {
        Failure::new(Code::RecipeConfigInvalid, format!("{shown} cannot be used: {why}"))
            .hint("save it as UTF-8, or name its encoding in its first line")
    })?;
    if let Some(was) = decoded.was {
        say(&format!("{shown} was {was}, and is read as UTF-8 from here on"));
        template::replace(&path, decoded.text.as_bytes())
            .map_err(|error| Failure::io(format!("cannot write {shown}"), &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_becomes_utf8_and_its_link_stays_one() {
        let recipe = tempfile::tempdir().unwrap();
        let file = recipe.path().join("real.txt");
        fs_err::write(
            &file,
            b"<?xml version='1.0' encoding='iso-8859-1'?><image name='\xfc'/>",
        )
        .unwrap();
        let link = recipe.path().join("a.kiwi");
        fs_err::os::unix::fs::symlink("real.txt", &link).unwrap();
        let said = std::cell::RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        decode(recipe.path(), Path::new("a.kiwi"), &say).unwrap();
        let text = "<?xml version='1.0' encoding='UTF-8'?><image name='ü'/>";
        assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
        assert!(fs_err::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(said.borrow().len(), 1);
        // Nothing of the host's is read through a link.
        let outside = recipe.path().join("b.kiwi");
        fs_err::os::unix::fs::symlink("/etc/passwd", outside).unwrap();
        decode(recipe.path(), Path::new("b.kiwi"), &say).unwrap();
        fs_err::write(&file, b"<image name='\xfc'/>").unwrap();
        let failure = decode(recipe.path(), Path::new("a.kiwi"), &say).unwrap_err();
        assert_eq!(failure.code, Code::RecipeConfigInvalid);
        assert_eq!(said.borrow().len(), 1);
    }
}

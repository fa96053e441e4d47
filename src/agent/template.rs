//! Renders the recipe's template files (Jinja2, listed in `.ims_recipe_template.yaml`) in place. Touches files of the
//! recipe only.

pub mod apart;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    io::{self, Write},
    path::{Component, Path, PathBuf},
};

use kiln_records::{Code, Failure, Warning, protocol::TemplateMode, xml_text};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, TemplateSource, UndefinedBehavior, syntax::SyntaxConfig};
use serde::Deserialize;

/// The list file, in the recipe's directory.
pub const LIST_FILE: &str = ".ims_recipe_template.yaml";

/// The most instructions for rendering one file; a loop over a few thousand values takes some ten thousand.
const FUEL: u64 = 20_000_000;

/// The deepest nesting of includes, macros and blocks.
const RECURSION: usize = 100;

/// The most bytes of a template file and of its result.
const FILE_BYTES: u64 = 32 << 20;

#[derive(Deserialize)]
struct List {
    /// An empty value would count as an empty list, but is more likely a mistake.
    template_files: Option<Vec<String>>,
}

/// Renders every file in the list. All are rendered before the first one is written, so that a failure leaves the
/// recipe unchanged. Permission bits and the last newline are kept.
pub fn render(
    recipe: &Path,
    values: &BTreeMap<String, String>,
    mode: TemplateMode,
    say: &dyn Fn(&str),
) -> Result<(), Failure> {
    let Some(names) = listed(recipe)? else {
        return Ok(());
    };
    let environment = environment(recipe, mode);
    let mut rendered = Vec::new();
    for name in &names {
        let path = file_in(recipe, name)?;
        if let Err(error) = read(&path)
            && error.kind() == io::ErrorKind::InvalidData
        {
            return Err(
                Failure::new(Code::TemplateFailed, format!("{name} cannot be rendered: {error}"))
                    .hint("templates are text in UTF-8: convert the file, or remove it from the list"),
            );
        }
        let text = render_one(&environment, name, values)?;
        rendered.push((path, name, text));
    }
    for (path, name, text) in rendered {
        replace(&path, &text).map_err(|error| Failure::io(format!("cannot write the rendered {name}"), &error))?;
        say(&format!("rendered {name}"));
    }
    Ok(())
}

/// The warning that values are of no use to a recipe.
pub fn unused(recipe: &Path, values: &BTreeMap<String, String>) -> Option<Warning> {
    let is_unused = !values.is_empty() && !recipe.join(LIST_FILE).exists();
    is_unused.then(|| {
        let message = format!("template values were given, but the recipe has no {LIST_FILE}; no file is rendered");
        Warning::new(Code::RecipeValues, message)
    })
}

/// The names that the listed files look up, including those with a default. Included files are not examined.
pub fn needed_values(recipe: &Path) -> Result<BTreeSet<String>, Failure> {
    let environment = environment(recipe, TemplateMode::Strict);
    let known: BTreeSet<&str> = environment.globals().map(|(name, _)| name).collect();
    let mut needed = BTreeSet::new();
    for name in listed(recipe)?.unwrap_or_default() {
        file_in(recipe, &name)?;
        let template = environment
            .get_template(&name)
            .map_err(|error| explain(&name, &error))?;
        needed.extend(template.undeclared_variables(false));
    }
    needed.retain(|name| !known.contains(name.as_str()));
    Ok(needed)
}

/// The real path of a file in the recipe. Links are followed, but not out of the recipe; `..` is refused.
///
/// An error of kind `PermissionDenied` means that `name` leads outside.
pub fn inside(recipe: &Path, name: &str) -> io::Result<PathBuf> {
    let outside = || io::Error::new(io::ErrorKind::PermissionDenied, "it leads outside the recipe");
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if name.is_empty() || !Path::new(name).components().all(plain) {
        return Err(outside());
    }
    let path = fs_err::canonicalize(recipe.join(name))?;
    if !path.starts_with(fs_err::canonicalize(recipe)?) {
        return Err(outside());
    }
    if !path.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(path)
}

/// The files in the list; `None` without a list file.
fn listed(recipe: &Path) -> Result<Option<BTreeSet<String>>, Failure> {
    let invalid = |why: &dyn Display| {
        Failure::new(
            Code::TemplateListInvalid,
            format!("{LIST_FILE} cannot be used: {}", one_line(why)),
        )
        .hint("it must be YAML with one list of paths: `template_files: [config.xml]`")
    };
    if fs_err::symlink_metadata(recipe.join(LIST_FILE)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = inside(recipe, LIST_FILE)
        .and_then(|path| read(&path))
        .map_err(|error| invalid(&error))?;
    let list: List = serde_saphyr::from_str(&text).map_err(|error| invalid(&error))?;
    let files = list
        .template_files
        .ok_or_else(|| invalid(&"it has no `template_files`"))?;
    Ok(Some(files.into_iter().collect()))
}

fn file_in(recipe: &Path, name: &str) -> Result<PathBuf, Failure> {
    inside(recipe, name).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(
            Code::TemplateFileMissing,
            format!("{LIST_FILE} names `{name}`, but {why}"),
        )
        .hint("the paths in the list are relative to the recipe's directory and stay below it")
    })
}

fn read(path: &Path) -> io::Result<String> {
    if fs_err::metadata(path)?.len() > FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 32 MiB"));
    }
    let bytes = match String::from_utf8(fs_err::read(path)?) {
        Ok(text) => return Ok(text),
        Err(error) => error.into_bytes(),
    };
    // Parts of a description say what they are in, as the description does.
    match xml_text::decode(&bytes) {
        Ok(decoded) if decoded.text.trim_start().starts_with('<') => Ok(decoded.text.into_owned()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8")),
        Err(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
    }
}

fn environment(recipe: &Path, mode: TemplateMode) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(true);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_auto_reload(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(match mode {
        TemplateMode::Strict => UndefinedBehavior::Strict,
        TemplateMode::Lenient => UndefinedBehavior::Lenient,
    });
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    // Recipes are written for Python: `{{ REPOS.split(",") }}`.
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    let recipe = recipe.to_owned();
    environment.set_loader(move |name| match inside(&recipe, name).and_then(|path| read(&path)) {
        Ok(text) => Ok(Some(TemplateSource::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{name} cannot be read: {error}"),
        )),
    });
    environment
}

fn render_one(
    environment: &Environment<'_>,
    name: &str,
    values: &BTreeMap<String, String>,
) -> Result<Vec<u8>, Failure> {
    let mut output = Output(Vec::new());
    environment
        .get_template(name)
        .and_then(|template| template.render_captured_to(values, &mut output).map(drop))
        .map_err(|error| explain(name, &error))?;
    Ok(output.0)
}

/// Text in memory with a limited length.
struct Output(Vec<u8>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > FILE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "it becomes longer than 32 MiB",
            ));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces `path` with a new file of the same permission bits.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let permissions = fs_err::metadata(path)?.permissions();
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(path))?;
    file.write_all(content)?;
    file.as_file().set_permissions(permissions)?;
    file.persist(path)?;
    Ok(())
}

/// The failure for an error of the template engine. Errors in included files are nested below those of their includer.
fn explain(listed: &str, error: &Error) -> Failure {
    let mut error = error;
    while let Some(inner) = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>()) {
        error = inner;
    }
    let place = match (error.name().unwrap_or(listed), error.line()) {
        (file, Some(line)) => format!("{file}:{line}"),
        (file, None) => file.to_owned(),
    };
    let mut what = error.detail().unwrap_or("the template cannot be used").to_owned();
    if let Some(name) = undefined_name(&what) {
        let value = name.split(['.', '[']).next().unwrap_or(name);
        return Failure::new(Code::TemplateUndefined, format!("{place}: `{name}` has no value"))
            .hint(format!("give it one: --set {value}=VALUE"));
    }
    if let Some(source) = std::error::Error::source(error) {
        what = format!("{what}: {source}");
    }
    let what = one_line(&what);
    match error.kind() {
        ErrorKind::UndefinedError => Failure::new(Code::TemplateUndefined, format!("{place}: {what}"))
            .hint("give every name of that line a value: --set NAME=VALUE"),
        ErrorKind::SyntaxError | ErrorKind::BadEscape => Failure::new(Code::TemplateSyntax, format!("{place}: {what}"))
            .hint("correct the file, or remove it from the list if it is not a Jinja2 template"),
        ErrorKind::OutOfFuel => Failure::new(Code::TemplateFailed, format!("{place}: rendering takes too long"))
            .hint("look for an endless loop"),
        _ => Failure::new(Code::TemplateFailed, format!("{place}: {what}"))
            .hint("correct the expression in that line; all values are text"),
    }
}

/// The undefined expression in the engine's message, such as `NAME` or `NAME.field`.
fn undefined_name(detail: &str) -> Option<&str> {
    let (before, _) = detail.split_once("` is undefined")?;
    Some(before.rsplit_once('`')?.1)
}

fn one_line(text: &dyn Display) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;

//! Finds the imports of each file of a library in its text: `use`, and paths in the code. Reads `src`.
//!
//! Names that a module re-exports are traced to the file that defines them. Methods, macros and other crates are
//! ignored.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// All modules of a library, by their paths.
pub(super) struct Tree {
    pub(super) modules: BTreeMap<Vec<String>, Module>,
}

pub(super) struct Module {
    pub(super) path: Vec<String>,
    /// The path below `src`.
    pub(super) file: PathBuf,
    imports: Vec<Import>,
    /// The names that `use` imports, and their full paths.
    names: BTreeMap<String, Vec<String>>,
}

/// A path in a file.
pub(super) struct Import {
    pub(super) line: usize,
    /// The module whose file defines the imported item.
    pub(super) target: Vec<String>,
}

impl Tree {
    pub(super) fn of_kiln() -> Self {
        Self::read(&src())
    }

    /// The tree of each crate below `src`, `kiln` among them.
    pub(super) fn of_all() -> Vec<Self> {
        let rooms = fs_err::read_dir(src()).unwrap().map(|room| room.unwrap().path());
        let crates = rooms.filter(|room| room.join("lib.rs").exists());
        crates.chain([src()]).map(|room| Self::read(&room)).collect()
    }

    fn read(room: &Path) -> Self {
        let mut tree = Self {
            modules: BTreeMap::new(),
        };
        tree.add(&src(), &room.join("lib.rs"), &[]);
        let homes = tree.modules.iter().map(|(path, module)| {
            let home = |import: &Import| Import {
                target: tree.home(&import.target, 0),
                ..*import
            };
            (path.clone(), module.imports.iter().map(home).collect())
        });
        for (path, imports) in homes.collect::<Vec<_>>() {
            tree.modules.entry(path).and_modify(|module| module.imports = imports);
        }
        tree
    }

    /// Adds a file and the modules that it declares.
    fn add(&mut self, src: &Path, file: &Path, path: &[String]) {
        let text = fs_err::read_to_string(file).unwrap();
        let (mut module, children) = Reader::new(&text, path).read();
        module.file = file.strip_prefix(src).unwrap().to_owned();
        self.modules.insert(path.to_owned(), module);
        let is_root = matches!(
            file.file_name().and_then(|name| name.to_str()),
            Some("mod.rs" | "lib.rs")
        );
        let dir = if is_root {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        };
        for (name, at) in children {
            let found = at.map_or_else(
                || {
                    let own = dir.join(format!("{name}.rs"));
                    if own.exists() {
                        own
                    } else {
                        dir.join(&name).join("mod.rs")
                    }
                },
                |at| file.with_file_name(at),
            );
            let path: Vec<String> = path.iter().cloned().chain([name]).collect();
            self.add(src, &found, &path);
        }
    }

    /// Every import of every module.
    pub(super) fn imports(&self) -> impl Iterator<Item = (&Module, &Import)> {
        let modules = self.modules.values();
        modules.flat_map(|module| module.imports.iter().map(move |import| (module, import)))
    }

    /// The module that a path leads to, through the names that others re-export.
    fn home(&self, path: &[String], depth: usize) -> Vec<String> {
        assert!(depth < 16, "{path:?} leads nowhere");
        let mut known = 0;
        while known < path.len() && self.modules.contains_key(&path[..=known]) {
            known += 1;
        }
        let (here, rest) = path.split_at(known);
        let renamed = rest.first().and_then(|name| self.modules[here].names.get(name));
        match renamed {
            Some(target) if !target.starts_with(path) => {
                let whole = [target, &rest[1..]].concat();
                self.home(&whole, depth + 1)
            }
            _ => here.to_owned(),
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Reads what one file declares and names.
struct Reader<'a> {
    tokens: Vec<(usize, &'a str)>,
    at: usize,
    own: &'a [String],
    module: Module,
    children: Vec<(String, Option<String>)>,
    /// The names of all modules that the file declares; a `use` may begin with them.
    declared: BTreeSet<&'a str>,
    /// The modules inside the file, by the depth of their braces.
    inline: Vec<usize>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, own: &'a [String]) -> Self {
        let tokens = tokens(text);
        let declared = tokens
            .windows(3)
            .filter(|three| three[0].1 == "mod" && three[2].1 == ";");
        Self {
            declared: declared.map(|three| three[1].1).collect(),
            tokens,
            at: 0,
            own,
            module: Module {
                path: own.to_owned(),
                file: PathBuf::new(),
                imports: Vec::new(),
                names: BTreeMap::new(),
            },
            children: Vec::new(),
            inline: Vec::new(),
            depth: 0,
        }
    }

    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |(_, token)| token)
    }

    fn read(mut self) -> (Module, Vec<(String, Option<String>)>) {
        let mut place = None;
        while self.at < self.tokens.len() {
            match (self.peek(0), self.peek(1), self.peek(2)) {
                ("#", "[", _) => {
                    let attribute = self.attribute();
                    if attribute.first() == Some(&"cfg") && attribute.contains(&"test") {
                        self.skip_item();
                    } else if let ["path", "=", text] = attribute[..] {
                        place = Some(text.trim_matches('"').to_owned());
                    }
                    continue;
                }
                ("mod", name, ";") => self.children.push((name.to_owned(), place.take())),
                ("mod", _, "{") => self.inline.push(self.depth),
                ("use", next, _) if next != "<" => {
                    self.at += 1;
                    let start = self.at;
                    self.use_tree(&[]);
                    assert_eq!(self.peek(0), ";", "{:?}", &self.tokens[start..=self.at]);
                    continue;
                }
                ("{", ..) => self.depth += 1,
                ("}", ..) => {
                    self.depth -= 1;
                    self.inline.pop_if(|depth| *depth == self.depth);
                }
                (_, "::", _) if self.at == 0 || self.tokens[self.at - 1].1 != "::" => {
                    self.path();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        (self.module, self.children)
    }

    /// The tokens of an attribute, between its brackets.
    fn attribute(&mut self) -> Vec<&'a str> {
        self.at += 2;
        let (start, mut depth) = (self.at, 1);
        while depth > 0 {
            match self.peek(0) {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
        self.tokens[start..self.at - 1]
            .iter()
            .map(|(_, token)| *token)
            .collect()
    }

    /// Skips an item, up to its semicolon or the end of its braces.
    fn skip_item(&mut self) {
        let mut depth = 0;
        loop {
            let token = self.peek(0);
            self.at += 1;
            match token {
                "" => return,
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let ends = token == ";" || (token == "}" && self.peek(0) != ";");
            if depth == 0 && ends {
                return;
            }
        }
    }

    /// A path outside `use`. It belongs to this crate if it begins with one of the three keywords or with an imported
    /// name.
    fn path(&mut self) {
        let line = self.tokens[self.at].0;
        let mut parts = vec![self.peek(0)];
        while self.peek(1) == "::" && is_word(self.peek(2)) {
            parts.push(self.peek(2));
            self.at += 2;
        }
        self.at += 1;
        let target = self.absolute(&parts).or_else(|| {
            let known = self.module.names.get(parts[0])?;
            Some(known.iter().cloned().chain(owned(&parts[1..])).collect())
        });
        if let Some(target) = target {
            self.module.imports.push(Import { line, target });
        }
    }

    fn use_tree(&mut self, before: &[&'a str]) {
        let mut parts = before.to_owned();
        loop {
            let (line, token) = self.tokens[self.at];
            self.at += 1;
            match token {
                "::" => {}
                "{" => {
                    while self.peek(0) != "}" {
                        self.use_tree(&parts);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                _ => parts.push(token),
            }
            if self.peek(0) == "::" || (token == "::") {
                continue;
            }
            if parts.len() > 1 && parts.last() == Some(&"self") {
                parts.pop();
            }
            let mut name = parts[parts.len() - 1];
            if self.peek(0) == "as" {
                name = self.peek(1);
                self.at += 2;
            }
            let is_child = self.declared.contains(parts[0]);
            let own = if is_child {
                [&["self"], &parts[..]].concat()
            } else {
                parts
            };
            if let Some(target) = self.absolute(&own) {
                self.module.names.insert(name.to_owned(), target.clone());
                self.module.imports.push(Import { line, target });
            }
            return;
        }
    }

    /// A path that begins with `crate`, `self` or `super`, from the root.
    fn absolute(&self, parts: &[&str]) -> Option<Vec<String>> {
        let ups = parts.iter().take_while(|part| **part == "super").count();
        let (kept, rest) = match *parts.first()? {
            "crate" => (0, &parts[1..]),
            "self" => (self.own.len(), &parts[1..]),
            "super" => ((self.own.len() + self.inline.len()).checked_sub(ups)?, &parts[ups..]),
            _ => return None,
        };
        let here = &self.own[..kept.min(self.own.len())];
        Some(here.iter().cloned().chain(owned(rest)).collect())
    }
}

fn owned<'a>(parts: &'a [&str]) -> impl Iterator<Item = String> + use<'a> {
    parts.iter().map(|part| (*part).to_owned())
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words, strings and signs of a program, with their lines; without comments.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let length = token_length(rest, first);
        let (token, after) = rest.split_at(length);
        if !first.is_whitespace() && !token.starts_with("//") && !token.starts_with("/*") {
            found.push((line, token));
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

fn token_length(rest: &str, first: char) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    let raw = rest.trim_start_matches(['b', 'c']);
    if let Some(hashes) = raw
        .strip_prefix('r')
        .map(|raw| raw.len() - raw.trim_start_matches('#').len())
        && raw[1 + hashes..].starts_with('"')
    {
        let start = rest.len() - raw.len() + 2 + hashes;
        return until(&format!("\"{}", "#".repeat(hashes)), start);
    }
    if raw.starts_with('"') {
        return quoted(rest, '"', rest.len() - raw.len() + 1);
    }
    if first == '\'' {
        // A lifetime has no second quote behind its first letter.
        let mut letters = rest.chars().skip(1);
        let (second, third) = (letters.next(), letters.next());
        return if second == Some('\\') || third == Some('\'') {
            quoted(rest, '\'', 1)
        } else {
            1
        };
    }
    if first.is_alphanumeric() || first == '_' {
        return rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
    }
    if rest.starts_with("::") { 2 } else { first.len_utf8() }
}

/// The length up to the closing quote.
fn quoted(text: &str, quote: char, from: usize) -> usize {
    let mut escaped = false;
    for (at, c) in text[from..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return from + at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn imports_are_found_wherever_they_stand() {
    let text = r#"
        use crate::{one::{self, Thing as Other}, two};
        pub(crate) use child::Name;
        use std::io;
        mod child;
        // crate::comment
        fn f<'a>(text: &'a str) -> char {
            let _ = ("crate::string", 'x', super::up(), Other::new());
            two::go(crate::deep::down::<u8>)
        }
        mod inline { fn f() { super::g(); super::super::h() } }
        #[cfg(test)]
        mod tests { use crate::tested; }
        const LAST: u8 = self::last();
    "#;
    let own = ["a".to_owned(), "b".to_owned()];
    let (module, children) = Reader::new(text, &own).read();
    assert_eq!(children, [("child".to_owned(), None)]);
    let found: Vec<String> = module.imports.iter().map(|import| import.target.join("::")).collect();
    assert_eq!(
        found,
        [
            "one",
            "one::Thing",
            "two",
            "a::b::child::Name",
            "a::up",
            "one::Thing::new",
            "two::go",
            "deep::down",
            "a::b::g",
            "a::h",
            "a::b::last",
        ]
    );
}

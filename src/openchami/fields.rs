//! Values of a tree by key, with the path of each for errors, and the keys that nobody asked for. Pure: no I/O.

use crate::{
    Wrong,
    yaml::{Node, Value},
};

/// How much of what a form writes is forgiven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manners {
    /// As YAML 1.1 in Python, and a single value may stand for a list.
    Lenient,
    /// As the types of image-thrillhouse.
    Strict,
}

/// A node and its path.
#[derive(Debug, Clone)]
pub(crate) struct At<'a> {
    pub path: String,
    pub node: &'a Node,
    manners: Manners,
}

impl<'a> At<'a> {
    pub fn top(node: &'a Node, manners: Manners) -> Self {
        Self {
            path: String::new(),
            node,
            manners,
        }
    }

    pub fn wants(&self, wanted: &'static str) -> Wrong {
        let key = if self.path.is_empty() {
            "the file".to_owned()
        } else {
            self.path.clone()
        };
        Wrong::Type {
            key,
            line: self.node.line,
            wanted,
        }
    }

    /// A scalar's own text; null is empty.
    pub fn text(&self) -> Result<String, Wrong> {
        match &self.node.value {
            _ if self.node.is_null() => Ok(String::new()),
            Value::Scalar { text, .. } => Ok(text.clone()),
            _ => Err(self.wants("a text")),
        }
    }

    pub fn flag(&self) -> Result<bool, Wrong> {
        let Value::Scalar { text, plain } = &self.node.value else {
            return Err(self.wants("a boolean"));
        };
        if self.node.is_null() {
            return Ok(false);
        }
        match (text.to_ascii_lowercase().as_str(), self.manners) {
            ("true" | "yes" | "on" | "y", Manners::Strict) if *plain => Ok(true),
            ("false" | "no" | "off" | "n", Manners::Strict) if *plain => Ok(false),
            (_, Manners::Strict) => Err(self.wants("a boolean")),
            (lower, Manners::Lenient) => Ok(!matches!(lower, "" | "false" | "no" | "off" | "0")),
        }
    }

    pub fn items(&self) -> Result<Vec<At<'a>>, Wrong> {
        let of = |(i, node): (usize, &'a Node)| At {
            path: format!("{}[{i}]", self.path),
            node,
            manners: self.manners,
        };
        match &self.node.value {
            _ if self.node.is_null() => Ok(Vec::new()),
            Value::List(items) => Ok(items
                .iter()
                .enumerate()
                .filter(|(_, node)| !node.is_null())
                .map(of)
                .collect()),
            Value::Scalar { .. } if self.manners == Manners::Lenient => Ok(vec![self.clone()]),
            _ => Err(self.wants("a list")),
        }
    }

    pub fn fields(&self) -> Result<Fields<'a>, Wrong> {
        let entries = match &self.node.value {
            _ if self.node.is_null() => &[],
            Value::Map(entries) => entries.as_slice(),
            _ => return Err(self.wants("a mapping")),
        };
        Ok(Fields {
            path: self.path.clone(),
            entries,
            manners: self.manners,
            taken: Vec::new(),
        })
    }
}

/// The entries of a mapping.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    path: String,
    entries: &'a [(String, Node)],
    manners: Manners,
    taken: Vec<String>,
}

impl<'a> Fields<'a> {
    pub fn path(&self, key: &str) -> String {
        let key = key.escape_debug();
        if self.path.is_empty() {
            key.to_string()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The value of a key, which counts as known from now on.
    pub fn get(&mut self, key: &str) -> Option<At<'a>> {
        let (_, node) = self.entries.iter().find(|(name, _)| name == key)?;
        self.taken.push(key.to_owned());
        Some(At {
            path: self.path(key),
            node,
            manners: self.manners,
        })
    }

    pub fn all(&mut self) -> Vec<(String, At<'a>)> {
        let keys: Vec<String> = self.entries.iter().map(|(key, _)| key.clone()).collect();
        keys.into_iter()
            .filter_map(|key| self.get(&key).map(|at| (key, at)))
            .collect()
    }

    /// A text that is not empty.
    pub fn text(&mut self, key: &str) -> Result<Option<String>, Wrong> {
        let text = self.get(key).map(|at| at.text()).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    pub fn need(&mut self, key: &str) -> Result<String, Wrong> {
        self.text(key)?.ok_or_else(|| Wrong::missing(self.path(key)))
    }

    pub fn flag(&mut self, key: &str, default: bool) -> Result<bool, Wrong> {
        match self.get(key) {
            Some(at) if !at.node.is_null() => at.flag(),
            _ => Ok(default),
        }
    }

    pub fn items(&mut self, key: &str) -> Result<Vec<At<'a>>, Wrong> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |at| at.items())
    }

    pub fn texts(&mut self, key: &str) -> Result<Vec<String>, Wrong> {
        self.items(key)?.iter().map(At::text).collect()
    }

    /// Texts by key, in the order of the file.
    pub fn pairs(&mut self, key: &str) -> Result<Vec<(String, String)>, Wrong> {
        let Some(at) = self.get(key) else { return Ok(Vec::new()) };
        at.fields()?
            .all()
            .into_iter()
            .map(|(key, at)| Ok((key, at.text()?)))
            .collect()
    }

    /// The fields below a key; none if it is not there.
    pub fn below(&mut self, key: &str) -> Result<Fields<'a>, Wrong> {
        let path = self.path(key);
        match self.get(key) {
            Some(at) => at.fields(),
            None => Ok(Fields {
                path,
                entries: &[],
                manners: self.manners,
                taken: Vec::new(),
            }),
        }
    }

    /// Warns of the keys that nobody asked for: the tools ignore them.
    pub fn rest(self, warnings: &mut Vec<String>) {
        for (key, _) in self.entries.iter().filter(|(key, _)| !self.taken.contains(key)) {
            warnings.push(format!("{} is ignored: no such key is known here", self.path(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::parse;

    #[test]
    fn flags_by_manners() {
        for (text, lenient, strict) in [
            ("yes", Some(true), Some(true)),
            ("Off", Some(false), Some(false)),
            ("y", Some(true), Some(true)),
            ("'true'", Some(true), None),
            ("'false'", Some(false), None),
            ("true'", Some(true), None),
            ("1", Some(true), None),
            ("[]", None, None),
        ] {
            let node = parse(text, true).unwrap();
            assert_eq!(At::top(&node, Manners::Lenient).flag().ok(), lenient, "{text}");
            assert_eq!(At::top(&node, Manners::Strict).flag().ok(), strict, "{text}");
        }
    }

    #[test]
    fn lists_and_nulls() {
        let node = parse("a: x\nb:\nc: [1, ~, 2]\nd: {}\n", true).unwrap();
        let mut lenient = At::top(&node, Manners::Lenient).fields().unwrap();
        assert_eq!(lenient.texts("a").unwrap(), ["x"]);
        assert!(lenient.texts("b").unwrap().is_empty() && lenient.text("b").unwrap().is_none());
        assert_eq!(lenient.texts("c").unwrap(), ["1", "2"]);
        assert!(lenient.texts("d").is_err());
        let mut warnings = Vec::new();
        let mut strict = At::top(&node, Manners::Strict).fields().unwrap();
        let wrong = strict.texts("a").unwrap_err();
        assert_eq!(wrong.to_string(), "a (line 1) must be a list");
        strict.rest(&mut warnings);
        assert_eq!(warnings.len(), 3);
        assert!(warnings[0].starts_with("b is ignored"), "{warnings:?}");
    }
}

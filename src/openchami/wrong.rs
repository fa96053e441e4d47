//! Why a file is refused. Pure: no I/O.

/// Why a layer file, a manifest or a file of variables is refused. No value of the file is in the text, for it may be a
/// secret: only keys, lines and names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The text is no YAML, or too large a document.
    #[error("not YAML: line {line}, column {column}: {why}")]
    Yaml {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What the YAML reader says.
        why: String,
    },
    /// A key is there twice, or a name that may be there once.
    #[error("line {line}: {key} is there twice")]
    Twice {
        /// The key's path, or the name.
        key: String,
        /// From 1; of the second one.
        line: usize,
    },
    /// A value is of another type.
    #[error("{key} (line {line}) must be {wanted}")]
    Type {
        /// The key's path, such as `layer.files[0].mode`.
        key: String,
        /// From 1.
        line: usize,
        /// What is wanted, with an article.
        wanted: &'static str,
    },
    /// A key that must be there is not, or is empty.
    #[error("{key} is missing")]
    Missing {
        /// The key's path.
        key: String,
    },
    /// The form has this, and Kiln cannot do it rightly.
    #[error("{key} is not supported: {why}")]
    Unsupported {
        /// The key's path.
        key: String,
        /// The reason.
        why: String,
    },
    /// A value is not one of those that the form takes.
    #[error("{key} {why}")]
    Value {
        /// The key's path.
        key: String,
        /// What is wrong with it, as the rest of a sentence.
        why: String,
    },
    /// A template asks for a variable without a value.
    #[error("line {line}: the variable {name} has no value")]
    Variable {
        /// The variable's name, without its first dot.
        name: String,
        /// From 1.
        line: usize,
    },
    /// A template has an action other than a variable, a text or a comment.
    #[error(
        "line {line}: the template's action {action} is not supported: only variables, such as {{{{ .name }}}}, are"
    )]
    Template {
        /// The action's first word.
        action: String,
        /// From 1.
        line: usize,
    },
    /// Layers of a manifest depend on each other in a ring.
    #[error("layers depend on each other: {}", layers.join(", "))]
    Cycle {
        /// Those of the ring, in the order of the file.
        layers: Vec<String>,
    },
    /// A manifest names a layer or an architecture that it does not have.
    #[error("{key} names {name}, which the manifest does not have")]
    Unknown {
        /// The key's path.
        key: String,
        /// The name.
        name: String,
    },
    /// The caller could not give a file that counts for a tag.
    #[error("cannot read {path}: {why}")]
    Input {
        /// The path as the file has it.
        path: String,
        /// What the caller said.
        why: String,
    },
}

impl Wrong {
    pub(crate) fn unsupported(key: impl Into<String>, why: impl Into<String>) -> Self {
        let (key, why) = (key.into(), why.into());
        Self::Unsupported { key, why }
    }

    pub(crate) fn value(key: impl Into<String>, why: impl Into<String>) -> Self {
        let (key, why) = (key.into(), why.into());
        Self::Value { key, why }
    }

    pub(crate) fn missing(key: impl Into<String>) -> Self {
        Self::Missing { key: key.into() }
    }
}

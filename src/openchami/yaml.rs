//! YAML as a tree with lines and the text of scalars as it was written. Pure: no I/O.
//!
//! serde would type a scalar before anybody knows what is wanted: `9.10` of a tag has to stay `9.10`.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use crate::Wrong;

/// The most nodes of a document, aliases counted as what they stand for, and the deepest nesting of them.
const MOST_NODES: usize = 100_000;
const DEEPEST: usize = 64;

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// From 1.
    pub line: usize,
    pub value: Value,
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// `plain`: without quotes, so that it may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file.
    Map(Vec<(String, Node)>),
}

impl Node {
    pub fn is_null(&self) -> bool {
        let Value::Scalar { text, plain: true } = &self.value else {
            return false;
        };
        matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar { .. } => 0,
            Value::List(items) => items.iter().map(Self::size).sum(),
            Value::Map(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }
}

/// The first document of a text. A key that is there twice is an error if `strict`, else the last one counts.
pub(crate) fn parse(text: &str, strict: bool) -> Result<Node, Wrong> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        strict,
    };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (Event::StreamEnd | Event::DocumentEnd, span) => return Ok(empty(&span)),
            (event, span) => return reader.node(event, &span, 0),
        }
    }
}

fn empty(span: &Span) -> Node {
    let value = Value::Scalar {
        text: String::new(),
        plain: true,
    };
    Node {
        line: span.start.line(),
        value,
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    strict: bool,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Wrong> {
        loop {
            match self.events.next_event() {
                Some(Ok((Event::Comment(..) | Event::Anchor(..), _))) => {}
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => return Err(not_yaml(&error)),
                None => return Ok((Event::StreamEnd, Span::default())),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node, Wrong> {
        self.nodes += 1;
        if self.nodes > MOST_NODES || depth > DEEPEST {
            return Err(refused(span, "the document is too large or too deep"));
        }
        let (line, mut anchor) = (span.start.line(), 0);
        let value = match event {
            Event::Scalar(text, style, id, tag) => {
                if text.contains('\0') {
                    return Err(refused(span, "a value has a NUL character"));
                }
                anchor = id;
                let plain = style == ScalarStyle::Plain && !tag.as_deref().is_some_and(is_text);
                Value::Scalar {
                    text: text.into_owned(),
                    plain,
                }
            }
            Event::SequenceStart(_, id, _) => {
                anchor = id;
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Value::List(items),
                        (event, span) => items.push(self.node(event, &span, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(_, id, _) => {
                anchor = id;
                self.map(depth)?
            }
            Event::Alias(id) => {
                let node = self.anchors.get(&id).cloned();
                let node = node.ok_or_else(|| refused(span, "an alias stands for what it is part of"))?;
                self.nodes += node.size();
                if self.nodes > MOST_NODES {
                    return Err(refused(span, "the document is too large with its aliases"));
                }
                node.value
            }
            _ => return Err(refused(span, "a value is missing")),
        };
        let node = Node { line, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn map(&mut self, depth: usize) -> Result<Value, Wrong> {
        let (mut entries, mut merged) = (Vec::<(String, Node)>::new(), Vec::new());
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, &span, depth + 1)?;
            let (event, span) = self.next()?;
            let node = self.node(event, &span, depth + 1)?;
            let Value::Scalar { text, plain } = key.value else {
                return Err(refused(&span, "a key is not a text"));
            };
            if plain && text == "<<" {
                merged.push(node);
            } else if let Some(there) = entries.iter_mut().find(|(name, _)| *name == text) {
                if self.strict {
                    return Err(Wrong::Twice {
                        key: text.escape_debug().to_string(),
                        line: key.line,
                    });
                }
                there.1 = node;
            } else {
                entries.push((text, node));
            }
        }
        for node in merged {
            let maps = match node.value {
                Value::List(items) => items,
                _ => vec![node],
            };
            for map in maps {
                let Value::Map(more) = map.value else {
                    return Err(Wrong::Type {
                        key: "<<".to_owned(),
                        line: map.line,
                        wanted: "a mapping",
                    });
                };
                for (key, node) in more {
                    if !entries.iter().any(|(name, _)| *name == key) {
                        entries.push((key, node));
                    }
                }
            }
        }
        Ok(Value::Map(entries))
    }
}

fn is_text(tag: &Tag) -> bool {
    tag.core_suffix() == Some("str")
}

fn refused(span: &Span, why: &str) -> Wrong {
    Wrong::Yaml {
        line: span.start.line(),
        column: span.start.col() + 1,
        why: why.to_owned(),
    }
}

fn not_yaml(error: &ScanError) -> Wrong {
    let (marker, why) = (error.marker(), error.info());
    Wrong::Yaml {
        line: marker.line(),
        column: marker.col() + 1,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(text: &str, plain: bool) -> Value {
        Value::Scalar {
            text: text.to_owned(),
            plain,
        }
    }

    #[test]
    fn scalars_keep_their_text_and_nodes_their_lines() {
        let node = parse("# first\na: 9.10\nb:\n  - '9.10'\n  - !!str 1\n  -\n--- \nother", true).unwrap();
        let Value::Map(entries) = node.value else { panic!() };
        assert_eq!(
            entries[0],
            (
                "a".to_owned(),
                Node {
                    line: 2,
                    value: scalar("9.10", true)
                }
            )
        );
        let Value::List(items) = &entries[1].1.value else {
            panic!()
        };
        assert_eq!(items[0].value, scalar("9.10", false));
        assert_eq!(items[1].value, scalar("1", false));
        assert!(items[2].is_null() && items[1].line == 5);
        assert!(parse("", true).unwrap().is_null());
    }

    #[test]
    fn merges_aliases_and_twins() {
        let node = parse("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\n", true).unwrap();
        let Value::Map(entries) = node.value else { panic!() };
        let Value::Map(merged) = &entries[1].1.value else {
            panic!()
        };
        assert_eq!(
            merged.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
            ["q", "p"]
        );
        assert_eq!(
            parse("a: 1\na: 2", true),
            Err(Wrong::Twice {
                key: "a".to_owned(),
                line: 2
            })
        );
        let Value::Map(last) = parse("a: 1\na: 2", false).unwrap().value else {
            panic!()
        };
        assert_eq!(last[0].1.value, scalar("2", true));
    }

    #[test]
    fn refusals_have_places() {
        assert!(matches!(
            parse("a: 1\nb: [\n", true),
            Err(Wrong::Yaml { line: 2.., .. })
        ));
        assert!(matches!(
            parse("a: \"\\0\"", true),
            Err(Wrong::Yaml { line: 1, column: 4, .. })
        ));
        let bomb: String = (1..9).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, i| {
            format!("{text}a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(","))
        });
        assert!(parse(&bomb, true).unwrap_err().to_string().contains("too large"));
        assert!(parse(&"[".repeat(90), true).is_err());
    }
}

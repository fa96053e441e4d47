//! Reads what a registry asks for in `WWW-Authenticate`. Pure: no I/O.

use std::collections::BTreeMap;

/// A way to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A token of another service, asked for with these parameters.
    Bearer {
        /// The service's address.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
        /// The rights that the token is for.
        scope: Option<String>,
    },
    /// Name and password in each request.
    Basic,
}

/// The longest header that is read.
const LONGEST: usize = 8192;

/// The best of the ways in a header: a token, if there is one.
pub fn parse<'h>(headers: impl Iterator<Item = &'h str>) -> Option<Challenge> {
    let all: Vec<Challenge> = headers
        .filter(|header| header.len() <= LONGEST)
        .flat_map(parse_one)
        .collect();
    let bearer = all
        .iter()
        .find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

fn parse_one(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_whitespace() || c == ',').unwrap_or(rest.len());
        let (scheme, after) = rest.split_at(end);
        let (mut parameters, after) = parameters(after);
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = parameters.remove("realm")
        {
            found.push(Challenge::Bearer {
                realm,
                service: parameters.remove("service"),
                scope: parameters.remove("scope"),
            });
        }
        rest = after.trim_start_matches([',', ' ', '\t']);
    }
    found
}

/// The parameters at the beginning of a text, and the rest: what is no `name=value` begins the next scheme.
fn parameters(mut rest: &str) -> (BTreeMap<String, String>, &str) {
    let mut found = BTreeMap::new();
    loop {
        let here = rest.trim_start_matches([',', ' ', '\t']);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let Some((name, value)) = here.split_once('=').filter(|(name, _)| {
            let name = name.trim_end();
            !name.is_empty() && name.chars().all(is_name)
        }) else {
            return (found, rest);
        };
        let (value, after) = self::value(value.trim_start());
        found.insert(name.trim_end().to_ascii_lowercase(), value);
        rest = after;
    }
}

fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        for (header, expected) in [
            (
                r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#,
                bearer(
                    "https://auth.example/token",
                    Some("r.example"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            (
                r#"Basic realm="x, y=z", bearer realm=https://a.example"#,
                bearer("https://a.example", None, None),
            ),
            (r#"Negotiate, BASIC realm="a\"b""#, Some(Challenge::Basic)),
            (r#"Bearer realm="never ends"#, bearer("never ends", None, None)),
            ("Bearer", None),
            ("Bearer service=x", None),
            ("=,=,=", None),
            ("", None),
        ] {
            assert_eq!(parse([header].into_iter()), expected, "{header}");
        }
        assert_eq!(
            parse(["Basic", &"x".repeat(LONGEST + 1)].into_iter()),
            Some(Challenge::Basic)
        );
    }
}

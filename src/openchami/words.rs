//! The words of a command line as image-thrillhouse splits it, without a shell. Pure: no I/O.

/// The words, and what was left out: the library that it uses stops at the first `;`, `&`, `|`, `<` or `>` outside quotes. `None`
/// if quotes or parentheses have no end.
pub(crate) fn split(line: &str) -> Option<(Vec<String>, Option<char>)> {
    let (mut words, mut word, mut began) = (Vec::new(), String::new(), false);
    let (mut escaped, mut single, mut double, mut back, mut dollar) = (false, false, false, false, false);
    let mut stopped = None;
    for c in line.chars() {
        if escaped {
            word.push(match c {
                't' => '\t',
                'n' => '\n',
                c => c,
            });
            (escaped, began) = (false, true);
            continue;
        }
        let bare = !(single || double || back || dollar);
        match c {
            '\\' if !single => {
                escaped = true;
                continue;
            }
            ' ' | '\t' | '\r' | '\n' if bare => {
                if began {
                    words.push(std::mem::take(&mut word));
                    began = false;
                }
                continue;
            }
            '`' if !single && !double && !dollar => back = !back,
            ')' if !single && !double && !back => dollar = !dollar,
            '(' if !single && !double && !back => {
                if dollar || !word.ends_with('$') {
                    return None;
                }
                dollar = true;
            }
            '"' if !single && !dollar => {
                (double, began) = (!double, true);
                continue;
            }
            '\'' if !double && !dollar => {
                (single, began) = (!single, true);
                continue;
            }
            ';' | '&' | '|' | '<' | '>' if bare => {
                stopped = Some(c);
                // The number of a redirection is no word.
                began &= !(c == '>' && word.starts_with(|c: char| c.is_ascii_digit()));
                break;
            }
            _ => {}
        }
        word.push(c);
        began = true;
    }
    if escaped || single || double || back || dollar {
        return None;
    }
    if began {
        words.push(word);
    }
    Some((words, stopped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits() {
        for (line, wanted, stopped) in [
            ("a  'b c' \"d'e\" f\\ g", vec!["a", "b c", "d'e", "f g"], None),
            ("a $HOME * ~ ''", vec!["a", "$HOME", "*", "~", ""], None),
            ("a && b", vec!["a"], Some('&')),
            ("a 2>/dev/null", vec!["a"], Some('>')),
            ("a 'x;y'", vec!["a", "x;y"], None),
            ("a $(b c) `d e`", vec!["a", "$(b c)", "`d e`"], None),
            ("", vec![], None),
        ] {
            let (words, at) = split(line).unwrap();
            assert_eq!(
                (words, at),
                (wanted.iter().map(|&w| w.to_owned()).collect(), stopped),
                "{line}"
            );
        }
        for line in ["'a", "\"a", "a\\", "a (b)", "a )", "$(a"] {
            assert_eq!(split(line), None, "{line}");
        }
    }
}

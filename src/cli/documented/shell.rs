//! Reads a line as a shell does, as far as documents need it. Pure: no I/O.

use std::{iter::Peekable, str::Chars};

/// A quotation has no end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenQuotation;

/// Stands for what a document leaves out, and for the output of a command.
pub(super) const LEFT_OUT: char = '…';

/// The simple commands of a line, each as its words, without redirections and comments. The commands of a substitution come
/// too; in its own place stands [`LEFT_OUT`].
pub(super) fn simple_commands(line: &str) -> Result<Vec<Vec<String>>, OpenQuotation> {
    let mut commands = Vec::new();
    let mut text = String::new();
    let mut quote = None;
    let mut rest = line.chars().peekable();
    while let Some(letter) = rest.next() {
        match (quote, letter) {
            (None | Some('"'), '\\') => {
                text.push(letter);
                text.extend(rest.next());
            }
            (None | Some('"'), '$') if rest.next_if_eq(&'(').is_some() => {
                commands.extend(simple_commands(&substitution(&mut rest))?);
                text.push(LEFT_OUT);
            }
            (None, '\'' | '"') => {
                quote = Some(letter);
                text.push(letter);
            }
            (Some(open), _) if open == letter => {
                quote = None;
                text.push(letter);
            }
            (None, '#') if text.is_empty() || text.ends_with(char::is_whitespace) => break,
            (None, '|' | '&' | ';' | '(' | ')') => commands.extend(words(&mut text)?),
            (None, '<' | '>') => {
                text.truncate(text.trim_end_matches(|c: char| c.is_ascii_digit()).len());
                pass_by_file(&mut rest);
            }
            _ => text.push(letter),
        }
    }
    commands.extend(words(&mut text)?);
    Ok(commands)
}

/// Takes the rest of a substitution.
fn substitution(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut depth = 1;
    let inside = rest.take_while(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth > 0
    });
    inside.collect()
}

/// Takes what follows the sign of a redirection.
fn pass_by_file(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|letter| ">& ".contains(*letter)).is_some() {}
    while rest.next_if(|letter| !" |&;()".contains(*letter)).is_some() {}
}

/// Takes the text of a simple command apart.
fn words(text: &mut String) -> Result<Option<Vec<String>>, OpenQuotation> {
    let words = shlex::split(&std::mem::take(text)).ok_or(OpenQuotation)?;
    Ok(Some(words).filter(|words| !words.is_empty()))
}

/// The part of a simple command that runs the program, whatever stands before it: assignments, or a command that has a
/// command of its own after `--` or after assignments.
pub(super) fn run_program<'a>(words: &'a [String], program: &str) -> Option<&'a [String]> {
    let is_program = |word: &str| word.rsplit('/').next() == Some(program);
    let mut may_begin = true;
    for (index, word) in words.iter().enumerate() {
        if may_begin && is_program(word) {
            return words.get(index..);
        }
        may_begin = word == "--" || is_assignment(word);
    }
    None
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kiln(line: &str) -> Vec<String> {
        let commands = simple_commands(line).unwrap();
        let found = commands.iter().filter_map(|words| run_program(words, "kiln"));
        found.map(|words| words.join("|")).collect()
    }

    #[test]
    fn the_commands_of_a_program_are_found() {
        for (line, found) in [
            ("kiln a 'b c' # d", &["kiln|a|b c"][..]),
            ("kiln a 'b > c | d' > e 2>&1 f", &["kiln|a|b > c | d|f"]),
            ("kiln a#b '#c' <d; x kiln && kiln e&", &["kiln|a#b|#c", "kiln|e"]),
            ("KILN_X=1 A=b target/kiln a | tee x", &["target/kiln|a"]),
            ("kubectl -n kiln exec deploy/kiln -- kiln a", &["kiln|a"]),
            ("setpriv --a=b env X=/y kiln a", &["kiln|a"]),
            ("kiln a \"$(kiln b $(c) d)\" e", &["kiln|b|…|d", "kiln|a|…|e"]),
            ("kiln a '$(kiln b)' \\$(", &["kiln|a|$(kiln b)|$"]),
            ("ls kiln", &[]),
            ("", &[]),
        ] {
            assert_eq!(of_kiln(line), found, "{line}");
        }
        assert_eq!(simple_commands("kiln 'a"), Err(OpenQuotation));
    }
}

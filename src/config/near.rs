//! Suggests the right name for a misspelled key, section or variable. Pure: no I/O.

use super::{
    keys::{SECTIONS, TOP, variable},
    problem::{Origin, Problem},
};

/// The problem of an unknown key or section.
pub(super) fn unknown(here: Origin, section: &str, name: &str) -> Problem {
    let all = || SECTIONS.iter().chain([&TOP]);
    let what = if section.is_empty() {
        format!("there is no key or section `{name}`")
    } else {
        format!("there is no key `{name}` in [{section}]")
    };
    let home = all().find(|other| other.keys.iter().any(|key| key.name == name));
    let near = || {
        let candidates = all().filter(|other| other.name == section).flat_map(|other| other.keys);
        let keys = candidates.map(|key| key.name);
        let sections = SECTIONS.iter().map(|section| section.name);
        keys.chain(sections.filter(|_| section.is_empty()))
            .map(|known| (distance(known, name), known))
            .min()
            .filter(|(distance, _)| *distance <= 1 + name.len() / 4)
    };
    let hint = match (near(), home) {
        (Some((_, near)), _) => format!("is it `{near}`?"),
        (None, Some(home)) if !home.name.is_empty() => format!("`{name}` is a key of [{}]", home.name),
        _ => "`kiln config reference` lists every key".to_owned(),
    };
    Problem::new(here, what).hint(hint)
}

/// The problem of a variable that sets nothing.
pub(super) fn unknown_variable(here: Origin, name: &str) -> Problem {
    let known = || {
        SECTIONS
            .iter()
            .flat_map(|section| section.keys.iter().map(|key| variable(section, key)))
    };
    let near = known()
        .chain([variable(&TOP, &TOP.keys[0])])
        .map(|known| (distance(&known, &name.to_ascii_uppercase()), known))
        .min()
        .filter(|(distance, _)| *distance <= 3);
    let problem = Problem::new(here, "there is no such key");
    match near {
        Some((_, near)) => problem.hint(format_args!("is it `{near}`?")),
        None => problem.hint("variables are named KILN__SECTION__KEY; `kiln config reference` lists every key"),
    }
}

/// The number of letters to change, add or remove between one word and the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn letters_between_words() {
        for (a, b, distance) in [
            ("", "abc", 3),
            ("listen", "lisen", 1),
            ("kitten", "sitting", 3),
            ("a", "a", 0),
        ] {
            assert_eq!(super::distance(a, b), distance);
            assert_eq!(super::distance(b, a), distance);
        }
    }
}

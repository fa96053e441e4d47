//! Finds the names that a mistyped name may stand for. Pure: no I/O.

/// The names closest to `given`, the closest first; at most three.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let given = given.to_lowercase();
    let most = (given.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let distance = if !given.is_empty() && (lower.contains(&given) || given.contains(&lower)) {
                // An incomplete name is a likely slip, even if much is missing.
                1
            } else {
                distance(&given, &lower, most)?
            };
            (!lower.is_empty()).then_some((distance, name))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(3).collect()
}

/// The number of letters to insert, remove, replace or swap with a neighbour, unless it exceeds `most`.
fn distance(one: &str, other: &str, most: usize) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut best = (above[j] + usize::from(a != b)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                let before: &Vec<usize> = &before;
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let names = ["debian-minimal", "debian-compute", "sles15", ""];
        assert_eq!(nearest("debian-minmal", names), ["debian-minimal"]);
        assert_eq!(nearest("Debian-Computer", names), ["debian-compute"]);
        assert_eq!(nearest("debian", names), ["debian-compute", "debian-minimal"]);
        assert_eq!(nearest("slse15", names), ["sles15"]);
        assert!(nearest("windows", names).is_empty());
    }
}

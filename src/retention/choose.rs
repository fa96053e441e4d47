//! Decides which images the rules give up. Pure: no I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::{Timestamp, tz::TimeZone};
use kiln_records::{Image, ImageId, Moment, arch::Arch};
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::{ImageRule, RetentionSettings, Series};

/// Why an image stays that a rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// It has one of the tags in `keep_tags`.
    Tag,
    /// A job that has not ended starts from it, or makes it.
    InUse,
    /// It belongs to a set that a channel leads to, or returns to, or to the newest set of a name, or the newest complete one.
    InSet,
    /// It has no manifest: whoever registered it may still upload it.
    Unfinished,
    /// It is among the newest complete images of its series.
    Newest,
    /// It is young.
    Young,
    /// It is the newest of its month.
    Monthly,
}

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// No rule names it.
    NotNamed,
    /// It stays.
    Kept(Kept),
    /// It goes.
    GivenUp,
}

/// Decides about each image, in the order given. `in_use` are images that something else needs, and what for.
pub(super) fn choose(
    images: &[&Image],
    settings: &RetentionSettings,
    in_use: &HashMap<ImageId, Kept>,
    now: Moment,
) -> Vec<Fate> {
    let mut fates = vec![Fate::NotNamed; images.len()];
    let mut series: BTreeMap<(usize, &str, Arch), Vec<usize>> = BTreeMap::new();
    for (index, image) in images.iter().enumerate() {
        let named = settings.images.iter().position(|rule| rule.names(&image.name));
        let Some(number) = named else { continue };
        if image.link.is_none() {
            fates[index] = Fate::Kept(Kept::Unfinished);
            continue;
        }
        let name = match settings.images[number].series {
            Series::Name => image.name.as_str(),
            Series::Rule => "",
        };
        series.entry((number, name, image.arch)).or_default().push(index);
    }
    for ((number, ..), mut members) in series {
        // The newest first. The id decides between images of the same moment, so that every server decides alike.
        members.sort_by_key(|index| std::cmp::Reverse((images[*index].created, images[*index].id.0)));
        let kept = kept_by_rule(&settings.images[number], images, &members, now);
        for index in members {
            let image = images[index];
            fates[index] = if settings.keep_tags.iter().any(|tag| image.metadata.contains_key(tag)) {
                Fate::Kept(Kept::Tag)
            } else if let Some(use_of_it) = in_use.get(&image.id) {
                Fate::Kept(*use_of_it)
            } else {
                kept.get(&index).copied().map_or(Fate::GivenUp, Fate::Kept)
            };
        }
    }
    fates
}

/// Which members of a series a rule keeps. They are sorted, the newest first.
fn kept_by_rule(rule: &ImageRule, images: &[&Image], members: &[usize], now: Moment) -> HashMap<usize, Kept> {
    let (youngest, this_month) = (now.minus(rule.younger.duration()), month(now));
    let mut months = HashSet::new();
    let mut kept = HashMap::new();
    for (rank, index) in members.iter().enumerate() {
        let created = images[*index].created;
        let is_first_of_month = months.insert(month(created));
        let why = if rank < rule.keep.max(1) {
            Kept::Newest
        } else if created > youngest {
            Kept::Young
        } else if is_first_of_month && month(created) > this_month - i64::from(rule.monthly) {
            Kept::Monthly
        } else {
            continue;
        };
        kept.insert(*index, why);
    }
    kept
}

/// The number of a moment's month, in UTC.
fn month(moment: Moment) -> i64 {
    let time = Timestamp::from_microsecond(moment.micros()).unwrap_or_default();
    let date = time.to_zoned(TimeZone::UTC).date();
    i64::from(date.year()) * 12 + i64::from(date.month())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kiln_records::{Link, StoreType};

    use super::*;
    use crate::settings::Period;

    fn image(name: &str, created: &str) -> Image {
        Image {
            id: ImageId::new(),
            created: created.parse().unwrap(),
            link: Some(Link {
                path: "s3://boot-images/x/manifest.json".to_owned(),
                etag: String::new(),
                store: StoreType::S3,
            }),
            name: name.to_owned(),
            arch: Arch::X86_64,
            metadata: BTreeMap::new(),
            deleted: None,
        }
    }

    fn rule(name: &str, keep: usize, younger_days: u64, monthly: u32) -> ImageRule {
        ImageRule {
            name: name.to_owned(),
            series: Series::Name,
            keep,
            younger: Period::seconds(younger_days * 86_400),
            monthly,
        }
    }

    fn settings(images: Vec<ImageRule>) -> RetentionSettings {
        RetentionSettings {
            images,
            ..RetentionSettings::default()
        }
    }

    fn now() -> Moment {
        "2026-11-25T12:00:00".parse().unwrap()
    }

    fn fates(images: &[Image], settings: &RetentionSettings) -> Vec<Fate> {
        choose(&Vec::from_iter(images), settings, &HashMap::new(), now())
    }

    #[test]
    fn each_part_of_a_rule_keeps() {
        let images = [
            image("a", "2026-11-24T00:00:00"),
            image("a", "2026-11-20T00:00:00"),
            image("a", "2026-11-10T00:00:00"),
            image("a", "2026-10-31T23:59:59"),
            image("a", "2026-10-01T00:00:00"),
            image("a", "2025-12-01T00:00:00"),
            image("a", "2025-11-30T00:00:00"),
            image("b", "2020-01-01T00:00:00"),
        ];
        assert_eq!(
            fates(&images, &settings(vec![rule("a", 1, 7, 12)])),
            [
                Fate::Kept(Kept::Newest),
                Fate::Kept(Kept::Young),
                Fate::GivenUp,
                Fate::Kept(Kept::Monthly),
                Fate::GivenUp,
                Fate::Kept(Kept::Monthly),
                Fate::GivenUp,
                Fate::NotNamed
            ]
        );
    }

    #[test]
    fn the_last_good_image_of_every_series_stays() {
        let mut other = image("old", "2001-01-01T00:00:00");
        other.arch = Arch::Aarch64;
        let mut unfinished = image("old", "2026-11-25T00:00:00");
        unfinished.link = None;
        let images = [
            image("old", "2000-01-01T00:00:00"),
            image("old", "1999-01-01T00:00:00"),
            other,
            unfinished,
        ];
        assert_eq!(
            fates(&images, &settings(vec![rule("*", 0, 0, 0)])),
            [
                Fate::Kept(Kept::Newest),
                Fate::GivenUp,
                Fate::Kept(Kept::Newest),
                Fate::Kept(Kept::Unfinished)
            ]
        );
    }

    #[test]
    fn the_first_rule_that_names_an_image_decides() {
        let images = [
            image("compute-1", "2026-01-01T00:00:00"),
            image("compute-2", "2026-02-01T00:00:00"),
            image("login", "2026-02-01T00:00:00"),
        ];
        let mut whole = rule("compute-*", 1, 0, 0);
        whole.series = Series::Rule;
        let decided = fates(&images, &settings(vec![whole, rule("*", 9, 0, 0)]));
        assert_eq!(
            decided,
            [Fate::GivenUp, Fate::Kept(Kept::Newest), Fate::Kept(Kept::Newest)]
        );
    }

    #[test]
    fn tags_and_use_keep() {
        let mut tagged = image("a", "2026-01-01T00:00:00");
        tagged.metadata.insert("kiln.keep".to_owned(), String::new());
        let used = image("a", "2026-01-02T00:00:00");
        let images = [
            tagged,
            used.clone(),
            image("a", "2026-01-03T00:00:00"),
            image("a", "2026-01-04T00:00:00"),
        ];
        let decided = choose(
            &Vec::from_iter(&images),
            &settings(vec![rule("a", 1, 0, 0)]),
            &HashMap::from([(used.id, Kept::InUse)]),
            now(),
        );
        assert_eq!(
            decided,
            [
                Fate::Kept(Kept::Tag),
                Fate::Kept(Kept::InUse),
                Fate::GivenUp,
                Fate::Kept(Kept::Newest)
            ]
        );
    }

    /// Whatever the rules are: the newest good image of a series stays, and passing a second time changes nothing.
    #[test]
    fn passing_again_gives_up_nothing_more() {
        let mut random: u64 = 1;
        let mut below = |limit: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for _ in 0..200 {
            let rules = vec![rule(
                "a*",
                usize::try_from(below(4)).unwrap(),
                below(90),
                u32::try_from(below(14)).unwrap(),
            )];
            let settings = settings(rules);
            let images: Vec<Image> = (0..below(30))
                .map(|_| {
                    let mut one = image(if below(2) == 0 { "a" } else { "ab" }, "2026-11-25T12:00:00");
                    one.created = now().minus(Duration::from_secs(below(500 * 86_400)));
                    if below(8) == 0 {
                        one.link = None;
                    }
                    one
                })
                .collect();
            let first = fates(&images, &settings);
            let stay: Vec<Image> = images
                .iter()
                .zip(&first)
                .filter(|(_, fate)| **fate != Fate::GivenUp)
                .map(|(image, _)| image.clone())
                .collect();
            assert!(fates(&stay, &settings).iter().all(|fate| *fate != Fate::GivenUp));
            for name in ["a", "ab"] {
                let of = |images: &[Image]| {
                    let good = images.iter().filter(|image| image.name == name && image.link.is_some());
                    good.map(|image| image.created).max()
                };
                assert_eq!(of(&images), of(&stay));
            }
        }
    }
}

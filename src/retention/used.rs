//! Finds the images of sets in use. Reads rows of the store.

use std::collections::{HashMap, HashSet};

use kiln_records::{ImageId, ImageSet, SetId};

use crate::store::{After, Query, SharedStore, StoreError};

/// Sets read at a time.
const CHUNK: u32 = 500;

/// The most channels: a site with more keeps the images of all sets.
const MOST_CHANNELS: u32 = 100_000;

/// The images of sets in use: those that a channel leads to, or returns to by a rollback; and of each name, the newest set
/// and the newest that was complete.
pub(super) async fn in_sets(store: &SharedStore) -> Result<HashSet<ImageId>, StoreError> {
    let channels = store.channels(None, MOST_CHANNELS).await?;
    let knows_all = channels.len() < usize::try_from(MOST_CHANNELS).unwrap_or(usize::MAX);
    let mut in_channels: HashSet<SetId> = HashSet::new();
    for change in &channels {
        in_channels.extend(change.set_id);
        if let Some(before) = change.before
            && let Some(earlier) = store.promotion(&change.name, &change.channel, before).await?
        {
            in_channels.extend(earlier.set_id);
        }
    }
    let (mut images, mut newest) = (HashSet::new(), HashMap::new());
    let mut query = Query {
        limit: CHUNK,
        ..Query::default()
    };
    loop {
        let page = store.page_sets(&query).await?;
        let Some(last) = page.last() else { break };
        query.after = Some(After {
            key: last.position.to_string(),
            id: last.record.id.to_string(),
        });
        for stored in page {
            let set = stored.record;
            if !knows_all || in_channels.contains(&set.id) {
                images.extend(images_of(&set));
            }
            // The list begins with the oldest, so the last one of a name stays here.
            let of_set: Vec<ImageId> = images_of(&set).collect();
            if set.was_complete {
                newest.insert((set.name.clone(), true), of_set.clone());
            }
            newest.insert((set.name, false), of_set);
        }
    }
    images.extend(newest.into_values().flatten());
    Ok(images)
}

fn images_of(set: &ImageSet) -> impl Iterator<Item = ImageId> {
    set.members.iter().filter_map(|member| Some(member.image.as_ref()?.id))
}

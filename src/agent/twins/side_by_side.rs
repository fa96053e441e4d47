//! Runs the same work on several threads, all of which end before the call returns.

use std::{collections::BTreeMap, sync::Mutex, thread};

/// The results of `work` for each thing, with the thing, in the order of the things. `threads` of them run at a time.
pub(super) fn side_by_side<T: Send, R: Send>(
    things: Vec<T>,
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<(T, R)> {
    let queue = Mutex::new(things.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.next());
                    let Some((at, thing)) = next else { return };
                    let made = work(&thing);
                    if let Ok(mut done) = done.lock() {
                        done.insert(at, (thing, made));
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default().into_values().collect()
}

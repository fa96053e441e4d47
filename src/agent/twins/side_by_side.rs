//! Runs the same work on several threads, all of which end before the call returns.

use std::{sync::Mutex, thread};

/// The results of `work` for each thing, with the thing, in no particular order. `threads` of them run at a time.
pub(super) fn side_by_side<T: Send, R: Send>(
    things: Vec<T>,
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<(T, R)> {
    let queue = Mutex::new(things);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.pop());
                    let Some(thing) = next else { return };
                    let made = work(&thing);
                    if let Ok(mut done) = done.lock() {
                        done.push((thing, made));
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default()
}

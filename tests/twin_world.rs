//! The directory of twins, made of Debian's own packages and used by native programs in a foreign root.

mod answers;
mod changes;
mod debian;
mod hostile;
mod joined;
mod other_host;

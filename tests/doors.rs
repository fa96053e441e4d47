//! Tests what callers and guests can reach, kind by kind: what one of them can do is no more than what is its own.

mod channels;

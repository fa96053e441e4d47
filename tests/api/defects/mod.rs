//! IMS's weaknesses, which Kiln must not share. Each test has the number of its weakness; docs/api.md has the list.
//! Tests of a single resource are beside the other tests of that resource.

mod input;
mod storage;

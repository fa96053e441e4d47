//! What IMS gets wrong and Kiln must not. Each test bears the number of the weakness in IMS that it is about;
//! docs/api.md has the list. Those that are about one resource only stand with that resource.

mod input;
mod storage;

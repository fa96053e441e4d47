//! The dashboard, in a real browser: Debian's chromium, on a real `kiln serve` whose records say what a bad night looks
//! like.

pub mod browser;
mod issuer;
mod night;
mod pages;
mod session;
mod upload;
mod warnings;

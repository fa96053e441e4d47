//! Recipes that others wrote: what users of kiwi and IMS have, in the spellings and with the surroundings that they
//! have. Each case is a public report that once went wrong here.

mod adding;
mod formats;
mod reading;
mod root;
mod scripts;
mod trust;

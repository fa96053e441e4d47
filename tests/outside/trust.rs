//! Authorities, signing keys and mirrors of a site, and what is said of what fails.

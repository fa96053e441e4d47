//! What a description says: old schemas, includes, profiles, package managers by other names.

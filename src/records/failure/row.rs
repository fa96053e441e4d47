//! Declares the form of the table of failures: what each row says, and the macro that makes [`Code`](super::Code) of it.
//! Pure: no I/O.

/// Whether a repetition may succeed later, and what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chance {
    /// Only after the owner of the cause has repaired it.
    Lasting,
    /// The same, unless native twins ran: programs of the image failed, or what they said is the cause. Another attempt
    /// without twins may succeed.
    OfTwins,
    /// Another attempt of the job may succeed; what failed is the place.
    OfThePlace,
    /// The same; what failed is the storage.
    OfStorage,
    /// The same; something was killed.
    Killed,
    /// It may pass while the caller waits, and another attempt may succeed; what failed is the place.
    PassingPlace,
    /// The same; what failed is the storage.
    PassingStorage,
    /// The same; something was killed.
    PassingKilled,
}

/// The exit code of a command that fails with it.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Exit {
    /// The command failed.
    Failed = 1,
    /// The request makes no sense, or the server refused it; clap's code for the first, `cray`'s for both.
    Refused = 2,
    /// The exit code that a shell reports for a program ended by SIGINT.
    Interrupted = 130,
}

/// Describes all codes: the enum, the consequences of each, and the rows of `docs/errors.md`.
///
/// A group is a section of that page, with the text above its table. A row is a variant, its name, the HTTP status of
/// an API answer that is refused because of it, the exit code of a command, whether a repetition may succeed later, the
/// condition, and the advice.
macro_rules! codes {
    ($(
        [$group:literal, $about:literal]
        $($code:ident = $name:literal, $status:literal, $exit:ident, $chance:ident, $when:literal, $advice:literal;)+
    )+) => {
        /// The kind of a failure. Written as a stable `snake_case` word; `docs/errors.md` lists them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[doc = $when] $code,)+)+
        }

        impl Code {
            /// All codes, in the order of `docs/errors.md`.
            pub const ALL: &[Self] = &[$($(Self::$code,)+)+];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$code => $name,)+)+ }
            }

            /// The HTTP status of an answer that is refused because of it.
            pub const fn status(self) -> u16 {
                match self { $($(Self::$code => $status,)+)+ }
            }

            /// The exit code of a command that fails with it.
            pub const fn exit(self) -> u8 {
                match self { $($(Self::$code => super::row::Exit::$exit as u8,)+)+ }
            }

            pub(super) const fn chance(self) -> super::row::Chance {
                match self { $($(Self::$code => super::row::Chance::$chance,)+)+ }
            }
        }

        /// The sections of `docs/errors.md`.
        #[cfg(test)]
        pub(super) const GROUPS: &[super::document::Group] = &[$(super::document::Group {
            name: $group,
            about: $about,
            rows: &[$(super::document::Row { code: Code::$code, when: $when, advice: $advice },)+],
        },)+];
    };
}
pub(super) use codes;

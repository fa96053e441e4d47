//! Reads the kernel's initial stack: arguments, environment, auxiliary vector. Pure: no I/O.

use core::slice;

use rustix::fd::BorrowedFd;

/// The end of the auxiliary vector.
const AT_NULL: usize = 0;
/// The descriptor of the program's file.
const AT_EXECFD: usize = 2;
/// The size of a page in bytes.
const AT_PAGESZ: usize = 6;
/// Flags of the interpreter.
const AT_FLAGS: usize = 8;
/// Whether the program has other rights than the process that started it.
const AT_SECURE: usize = 23;

/// In [`AT_FLAGS`]: the program's own name was kept as the third argument (`P` of `binfmt_misc`).
const PRESERVE_ARGV0: usize = 1;

/// A string that lives as long as the process.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(*const u8);

/// The initial stack. The interpreter's arguments are its own path, the program's path, the program's name, and the
/// program's arguments.
pub struct Stack {
    /// All arguments.
    pub arguments: &'static [Text],
    /// The environment.
    pub environment: &'static [Text],
    auxiliary: &'static [[usize; 2]],
}

impl Text {
    /// Its address, for the kernel.
    pub fn as_ptr(self) -> *const u8 {
        self.0
    }

    /// Its bytes one by one.
    pub fn bytes(self) -> impl Iterator<Item = u8> {
        (0..)
            // SAFETY: the string ends with a zero, and nothing after it is read.
            .map(move |at| unsafe { self.0.add(at).read() })
            .take_while(|byte| *byte != 0)
    }

    /// Whether it begins with `prefix`.
    pub fn starts_with(self, prefix: &[u8]) -> bool {
        let mut bytes = self.bytes();
        prefix.iter().all(|byte| bytes.next() == Some(*byte))
    }

    /// Whether it is exactly this word.
    pub fn equals(self, word: &[u8]) -> bool {
        self.bytes().eq(word.iter().copied())
    }

    /// Whether it is the variable `name` with exactly this value.
    pub fn is(self, name: &str, value: &[u8]) -> bool {
        let words = name.bytes().chain(*b"=").chain(value.iter().copied());
        self.bytes().eq(words)
    }
}

impl Stack {
    /// Reads the stack.
    ///
    /// # Safety
    ///
    /// `bottom` is the stack pointer with which the kernel started the process.
    pub unsafe fn read(bottom: *const usize) -> Self {
        // SAFETY: the kernel lays out the argument count, that many pointers, a null pointer; pointers of the
        // environment up to a null pointer; pairs up to one of the kind AT_NULL. None of it is ever changed.
        unsafe {
            let count = *bottom;
            let arguments = bottom.add(1);
            let environment = arguments.add(count).add(1);
            let mut variables = 0;
            while *environment.add(variables) != 0 {
                variables += 1;
            }
            let auxiliary: *const [usize; 2] = environment.add(variables).add(1).cast();
            let mut pairs = 0;
            while (*auxiliary.add(pairs))[0] != AT_NULL {
                pairs += 1;
            }
            Self {
                arguments: slice::from_raw_parts(arguments.cast(), count),
                environment: slice::from_raw_parts(environment.cast(), variables),
                auxiliary: slice::from_raw_parts(auxiliary, pairs),
            }
        }
    }

    fn auxiliary(&self, kind: usize) -> Option<usize> {
        self.auxiliary.iter().find(|pair| pair[0] == kind).map(|pair| pair[1])
    }

    /// The descriptor of the program's file, which `binfmt_misc` passes with the flag `O`.
    pub fn program(&self) -> Option<BorrowedFd<'static>> {
        let number = i32::try_from(self.auxiliary(AT_EXECFD)?).ok()?;
        // SAFETY: the kernel opened it for the interpreter, and nothing here closes it.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Whether the flag `P` was in effect for the arguments.
    pub fn keeps_name(&self) -> bool {
        self.auxiliary(AT_FLAGS)
            .is_some_and(|flags| flags & PRESERVE_ARGV0 != 0)
    }

    /// The kernel's size of a page in bytes.
    pub fn page_size(&self) -> Option<usize> {
        self.auxiliary(AT_PAGESZ)
    }

    /// Whether the program gained rights when it was started.
    pub fn is_secure(&self) -> bool {
        self.auxiliary(AT_SECURE) != Some(0)
    }
}

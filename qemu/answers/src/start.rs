//! The constructor: runs before the program's own code, removes Kiln's variables and looks everything up.

use core::{
    ffi::{CStr, c_char, c_int},
    ptr,
};

use crate::{call, facts, next, overrides, restart, traps, writers};

type Constructor = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);

/// The loader calls the functions in this section when everything is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: Constructor = begin;

extern "C" fn begin(_: c_int, arguments: *mut *mut c_char, variables: *mut *mut c_char) {
    // SAFETY: the loader passes the process's variables, which end with a null pointer.
    if unsafe { take(variables) } > 0 {
        // Before the process's state is remembered: this writes.
        writers::begin();
        // A removed variable leaves space for another one.
        restart::remember(arguments, variables);
        restart::at_once_if_known();
    }
    // Another constructor may have set a variable, and so moved the list.
    // SAFETY: there is one thread.
    let now = unsafe { next::environ };
    if !ptr::eq(now, variables) {
        // SAFETY: as above.
        unsafe { take(now) };
    }
    facts::read_target();
    overrides::look_up();
    traps::set();
}

/// Removes Kiln's variables from the list, in place: they disappear for every holder of its address, and for all
/// children. Returns their number.
///
/// # Safety
///
/// `variables` is null or a list of texts that ends with a null pointer.
unsafe fn take(variables: *mut *mut c_char) -> usize {
    let mut count = 0;
    // SAFETY: the list ends with a null pointer, at which the loop ends.
    while let Some(variable) = unsafe { text_at(variables, count) } {
        let bytes = variable.to_bytes();
        if let Some(path) = bytes.strip_prefix(call::EXE.as_bytes()) {
            facts::EXE.fill(|all| {
                let room = all.get_mut(..path.len());
                room.map_or(0, |room| {
                    room.copy_from_slice(path);
                    path.len()
                })
            });
        } else if let Some(name) = variable.to_bytes_with_nul().strip_prefix(call::COMM.as_bytes()) {
            // A name that the kernel refuses is no reason to fail.
            let _ = CStr::from_bytes_with_nul(name).map(rustix::thread::set_name);
        } else {
            break;
        }
        count += 1;
    }
    if count == 0 {
        return 0;
    }
    for at in 0.. {
        // SAFETY: as above; the place written lies before the place read.
        let variable = unsafe { *variables.add(at + count) };
        // SAFETY: as above.
        unsafe { *variables.add(at) = variable };
        if variable.is_null() {
            break;
        }
    }
    count
}

/// # Safety
///
/// As for [`take`]; `at` is not beyond the end of the list.
unsafe fn text_at<'a>(list: *mut *mut c_char, at: usize) -> Option<&'a CStr> {
    if list.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { *list.add(at) };
    // SAFETY: guaranteed by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

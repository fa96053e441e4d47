//! Tests customize jobs as their users see them: real OpenSSH, sftp, rsync and Ansible against shells of real
//! sandboxes. The resulting image is compared to the last byte.

mod changes;
mod debug;
mod faults;
mod foreign;
mod places;
mod shell;
pub mod site;

//! The lowest floor: the kernel's and the state directory's things that sandboxes are made of.
//!
//! | about | modules |
//! |---|---|
//! | processes | `process`, `starter`, `nofile`, `sockets`, `ceiling` |
//! | cgroups | `cgroup`, `limit`, `freeze`, `hybrid`, `dynmods`, `service` |
//! | mounts and file systems | `mounts`, `mount_namespace`, `file_system_end`, `holders`, `layer`, `detached_layer`, `upper`, `crypt`, `tenant_root`, `tenant_tree` |
//! | users, ids, devices and host paths | `account`, `idrange`, `devices`, `hostpath`, `git_dir`, `open_flags`, `setid` |
//! | directories of a sandbox and of the state | `traces`, `live`, `base`, `tree_watch`, `guest` |
//! | programs, work, errors | `runtime`, `agents`, `toolchains`, `task`, `error` |
//!
//! **Nothing here knows what a sandbox, a plan or an isolation class is.** Every other floor may import this one.

pub(crate) mod account;
pub(crate) mod agents;
pub(crate) mod base;
pub(crate) mod ceiling;
pub(crate) mod cgroup;
pub(crate) mod crypt;
pub(crate) mod detached_layer;
pub(crate) mod devices;
pub(crate) mod dynmods;
pub(crate) mod error;
mod etc;
pub(crate) mod file_lease;
pub(crate) mod file_system_end;
pub(crate) mod freeze;
pub(crate) mod git_dir;
pub(crate) mod guest;
pub(crate) mod holders;
pub(crate) mod hostpath;
pub(crate) mod hybrid;
pub(crate) mod idrange;
pub(crate) mod layer;
pub(crate) mod limit;
pub(crate) mod live;
pub(crate) mod memory_pipe;
pub(crate) mod mount_namespace;
pub(crate) mod mounts;
pub(crate) mod nofile;
pub(crate) mod open_flags;
pub(crate) mod process;
pub(crate) mod processors;
pub(crate) mod runtime;
pub(crate) mod service;
pub(crate) mod setid;
pub(crate) mod sockets;
pub(crate) mod starter;
pub(crate) mod task;
pub(crate) mod tenant_root;
pub(crate) mod tenant_tree;
pub(crate) mod toolchains;
pub(crate) mod traces;
mod tree_watch;
pub(crate) mod upper;
pub(crate) mod weight;

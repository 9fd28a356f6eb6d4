//! The flags that say how far the node's disk may be filled.

use clap::{ArgAction, Args};

use crate::decide::disk::Limits;

/// How far the filesystem of images may be filled.
#[derive(Args, Clone, Debug)]
pub struct DiskFlags {
    /// No pull goes on that would fill the filesystem of images beyond so many percent of its bytes or inodes. Below the kubelet's
    /// imageGCHighThresholdPercent, which is 85 by default. 100: no limit.
    #[arg(long, env = "IMAGECACHE_DISK_HIGH_PERCENT", value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(1..=100))]
    disk_high_percent: u8,

    /// Pinned images may take so many percent of the filesystem of images; those beyond that are cached and not pinned.
    #[arg(long, env = "IMAGECACHE_MAX_PINNED_PERCENT", value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    max_pinned_percent: u8,

    /// When there is no room for a pull, remove images that this agent has pulled and that nobody wants any more, the oldest first, also
    /// those whose removal policy is Keep.
    #[arg(
        long,
        env = "IMAGECACHE_RECLAIM",
        value_name = "BOOL",
        default_value_t = false,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    reclaim: bool,
}

impl DiskFlags {
    /// The limits that they set.
    pub const fn limits(&self) -> Limits {
        Limits {
            high_percent: self.disk_high_percent,
            max_pinned_percent: self.max_pinned_percent,
            reclaim: self.reclaim,
        }
    }
}

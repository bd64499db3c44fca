//! Work on several threads, whose results do not depend on how many there are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `count` pieces of work, each with what its thread keeps, and returns them in their order.
pub(crate) fn on_threads<S, T: Send>(
    threads: usize,
    count: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(usize, &mut S) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let run = || {
        let mut state = state();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = done.get(at) else { return };
            let value = work(at, &mut state);
            // Nobody panics while holding it.
            *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(value);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            scope.spawn(run);
        }
        run();
    });
    let take = |slot: Mutex<Option<T>>| slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.into_iter().filter_map(take).collect()
}

//! Machines that were stored before they were anybody's, and what each has of its own.

use crate::support;

use cofferdam_ambient::clock;
use cofferdam_sandbox::{Class, enter_private_mounts};
use serde_json::json;
use support::{Bench, sh, verified};

/// A bench of machines, where this host makes such that are stored.
fn with_machines<F: Future<Output = ()>>(test: impl FnOnce(std::sync::Arc<Bench>) -> F) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let mut bench = Bench::new(None);
    bench.class = Class::Microvm;
    if bench.has_class(Class::Microvm) {
        support::on(bench, test);
    }
}

#[test]
fn the_first_machine_of_a_shape_boots_and_the_next_one_is_restored() {
    with_machines(|bench| async move {
        let (first, plan) = bench.start(json!({})).await;
        assert!(!first.boot().is_restored);
        // What the first one asked for is waited for, not asked for again.
        assert!(bench.host.warm(&plan).await);
        let (next, _) = bench.start(json!({})).await;
        assert!(next.boot().is_restored);
        let (other, _) = bench.start(json!({"limits": {"memMB": 192}})).await;
        assert!(!other.boot().is_restored, "another size of memory is another machine");
        for sandbox in [next, other] {
            verified(&sandbox.wipe("task-end").await);
        }
        verified(&first.wipe("task-end").await);
    });
}

#[test]
fn a_machine_waits_for_the_next_sandbox_of_its_shape_and_serves_no_second_one() {
    with_machines(|bench| async move {
        let plan = bench.plan(json!({}));
        assert!(bench.host.warm(&plan).await);
        let (first, first_plan) = bench.start(json!({})).await;
        assert!(first.boot().has_waited);
        // Straight after it: usually there is none yet.
        let (second, second_plan) = bench.start(json!({})).await;
        assert!(second.boot().is_restored && second.init_pid() != first.init_pid());
        // What a warm-up leaves is nothing that a task can see.
        let look = "ls -A / /tmp /.cofferdam; cut -d' ' -f2- /proc/mounts; set -- /proc/[0-9]*; echo $#; \
                    cat /proc/sys/kernel/randomize_va_space";
        let [waited, restored] =
            [sh(&first, &first_plan, look).await, sh(&second, &second_plan, look).await];
        assert!(waited.stdout.ends_with("\n2\n"), "{}", waited.stdout);
        assert_eq!(waited.stdout, restored.stdout);
        // What is executed lies elsewhere each time.
        let place = "grep -m 1 stack /proc/self/maps";
        let [one, two] =
            [sh(&first, &first_plan, place).await, sh(&first, &first_plan, place).await];
        assert!(one.stdout.contains("stack") && one.stdout != two.stdout, "{}", one.stdout);
        verified(&first.wipe("task-end").await);
        verified(&second.wipe("task-end").await);
        assert!(bench.host.warm(&plan).await);
        let (next, next_plan) = bench.start(json!({})).await;
        assert!(next.boot().has_waited, "another one, made for it");
        assert_eq!(sh(&next, &next_plan, look).await.stdout, waited.stdout);
        verified(&next.wipe("task-end").await);
    });
}

#[test]
fn machines_restored_from_one_share_neither_randomness_nor_clock_nor_limits_nor_files() {
    with_machines(|bench| async move {
        let small = json!({"limits": {"memMB": 128, "diskMB": 8, "pids": 20, "nofile": 333}});
        let large = json!({"limits": {"memMB": 128, "diskMB": 48, "pids": 60, "nofile": 444}});
        assert!(bench.host.warm(&bench.plan(small.clone())).await);
        let ((one, one_plan), (two, two_plan)) =
            (bench.start(small).await, bench.start(large).await);
        assert!(one.boot().is_restored && two.boot().is_restored);
        let script = "echo mine > /tmp/mine; cat /proc/sys/kernel/random/boot_id \
                      /proc/sys/kernel/random/uuid; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'";
        let random = [sh(&one, &one_plan, script).await, sh(&two, &two_plan, script).await];
        let [ours, theirs] = random.each_ref().map(|said| said.stdout.lines().collect::<Vec<_>>());
        assert_eq!((ours.len(), theirs.len()), (3, 3), "{ours:?} {theirs:?}");
        assert!(
            ours.iter().all(|line| line.len() > 30 && !theirs.contains(line)),
            "{ours:?} {theirs:?}"
        );
        // To the second that `date` tells, however long a machine took to come to life.
        for (sandbox, plan) in [(&one, &one_plan), (&two, &two_plan)] {
            let before = clock::now_ms() / 1_000;
            let said = sh(sandbox, plan, "date +%s").await.stdout;
            let now: i64 = said.trim().parse().unwrap();
            assert!((before - 1..=clock::now_ms() / 1_000 + 1).contains(&now), "{now} {before}");
        }
        for (sandbox, plan, nofile, megabytes) in
            [(&one, &one_plan, "333", 12), (&two, &two_plan, "444", 12)]
        {
            let script =
                format!("ulimit -n; head -c {megabytes}M /dev/zero > /tmp/file && echo fits");
            let said = sh(sandbox, plan, &script).await.stdout;
            let fits = nofile == "444";
            assert_eq!(said, format!("{nofile}\n{}", if fits { "fits\n" } else { "" }));
        }
        // Thirty at once: more than the one may have, and fewer than the other.
        let crowd = "for n in $(seq 30); do sleep 1 & done; wait; echo all";
        assert!(!sh(&one, &one_plan, crowd).await.stdout.contains("all"));
        assert!(sh(&two, &two_plan, crowd).await.stdout.contains("all"));
        verified(&one.wipe("task-end").await);
        verified(&two.wipe("task-end").await);
        let said = bench.sh("cat /tmp/mine || echo none", json!({})).await;
        assert_eq!(
            said.stdout, "none\n",
            "a machine that is restored later has nothing of another"
        );
    });
}

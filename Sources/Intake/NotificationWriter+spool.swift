import Postgres
import Spool
import Synchronization
import Telemetry

/// The spool's directory, as the writer looks after it.
extension NotificationWriter {
    /// Looks for files that came or went, and for such that are nothing of ours.
    func scan() async {
        guard let spool = intake.spool else { return }
        do {
            report(try await spool.scan())
        } catch {
            spoolFailed(error)
        }
        await tryFailedSpool()
    }

    /// A daemon that isn't ready is sent nothing, so nothing would tell whether the spool works again.
    func tryFailedSpool() async {
        guard let spool = intake.spool, line.withLock({ $0.spoolComplaint.cause != nil }) else { return }
        do {
            try await spool.check()
            spoolSucceeded()
        } catch {
            spoolFailed(error)
        }
    }

    /// Says why the spool takes nothing.
    func spoolFailed(_ error: any Error) {
        let cause = "\(error)"
        let (isAway, isDue) = line.withLock { line in
            let isDue = line.spoolComplaint.isDue(cause)
            if line.connection == nil { intake.storage = .nowhere(cause: cause) }
            return (line.connection == nil, isDue)
        }
        guard isDue else { return }
        let consequence = isAway ? "notifications are answered 503" : "PostgreSQL takes all notifications meanwhile"
        intake.log.error("the spool can't be written to; \(consequence)", ["error": cause])
    }

    /// The spool took something.
    func spoolSucceeded() {
        let wasFailing = line.withLock { line in
            guard line.spoolComplaint.settled() else { return false }
            if line.connection == nil { intake.storage = .spool }
            return true
        }
        if wasFailing { intake.log.notice("the spool can be written to again") }
    }

    /// A file in the spool can't be read at present.
    func reportUnread(_ error: SpoolError?) {
        guard let error, line.withLock({ $0.unreadComplaint.isDue("\(error)") }) else { return }
        intake.log.error(
            "a file in the spool can't be read; it stays and is tried again: give it to siwad's user, or look at the disk",
            ["error": "\(error)"]
        )
    }

    func report(_ setAside: [Spool.SetAside]) {
        for file in setAside {
            intake.metrics.spoolFilesSetAside.increment(file.reason.rawValue)
            intake.log.error(
                "a file in the spool directory was set aside; look at it, and remove it when nothing in it is needed",
                ["file": file.path, "reason": file.reason.rawValue]
            )
        }
    }
}

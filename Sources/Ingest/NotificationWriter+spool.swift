import AccountStore
import AppleTokens
import JOSE
import Postgres
import Spool
import Synchronization
import Telemetry

/// What the writer keeps in the spool.
extension NotificationWriter {
    /// Answers a batch from the spool, or 503. A token that is durable already, or that comes twice, is written once.
    ///
    /// - Parameter isEarly: the writer works on the batch at the same time, and finishes it.
    func spool(_ batch: [Submission], isEarly: Bool = false) async {
        guard intake.spool != nil else { return answerUnavailable(batch) }
        for share in Spool.Share.allCases {
            var tokens: [[UInt8]: [Submission]] = [:]
            for submission in batch where submission.work.share == share {
                tokens[submission.work.tokenDigest, default: []].append(submission)
            }
            if !tokens.isEmpty { await spool(tokens, share, isEarly: isEarly) }
        }
    }

    private func spool(_ tokens: [[UInt8]: [Submission]], _ share: Spool.Share, isEarly: Bool) async {
        await followLosses()
        let unwritten = tokens.filter { !intake.durable.contains($0.key, as: share) }
        let records = unwritten.values.compactMap { $0.first.map { SpoolRecord($0) } }
        do {
            if !records.isEmpty { try await intake.spool?.append(records, share: share) }
        } catch {
            let durable = tokens.filter { unwritten[$0.key] == nil }.values.flatMap(\.self)
            acknowledge(durable, isEarly: isEarly)
            let refused = unwritten.values.flatMap(\.self)
            guard error.code == .shareFull else {
                spoolFailed(error)
                return answerUnavailable(refused, isEarly: isEarly)
            }
            shareRefused(error)
            // What can't be verified anyway is answered as it would be when kept.
            if share == .unverified { return acknowledge(refused, isEarly: isEarly) }
            let full = Answer.unavailable(.deadLetterLimit, retryAfterSeconds: 300)
            return answerUnavailable(refused, full, isEarly: isEarly)
        }
        for digest in unwritten.keys { intake.durable.insert(digest, as: share) }
        acknowledge(tokens.values.flatMap(\.self), isEarly: isEarly)
        intake.metrics.spooled.increment(by: records.count)
        if !records.isEmpty { spoolSucceeded() }
    }

    /// Answers those of a batch that bring a dead letter which is durable already.
    ///
    /// - Returns: the others.
    func answerDurable(_ batch: [Submission]) -> [Submission] {
        func isDurable(_ submission: Submission) -> Bool {
            guard case .deadLetter(let received, _) = submission.work else { return false }
            return intake.durable.contains(received.tokenDigest, as: received.share)
        }
        guard batch.contains(where: isDurable) else { return batch }
        acknowledge(batch.filter(isDurable))
        return batch.filter { !isDurable($0) }
    }

    /// Answers what is durable, and gives back what was reserved: the spool bounds its dead letters itself, and what comes
    /// from it is counted in the database.
    private func acknowledge(_ batch: [Submission], isEarly: Bool = false) {
        if !isEarly {
            for case .deadLetter(let received, _) in batch.map(\.work) { intake.giveUp(received) }
        }
        answer(batch.map { ($0, $0.work.answerWhenDurable) }, isEarly: isEarly)
    }

    /// The dead letters have taken their share of the spool. Notifications still find room.
    private func shareRefused(_ error: SpoolError) {
        guard line.withLock({ $0.shareComplaint.isDue("\(error.code)") }) else { return }
        intake.log.error("no more dead letters are kept until PostgreSQL is back", ["error": "\(error)"])
    }
}

extension Submission.Work {
    /// Whose room it takes in the spool.
    fileprivate var share: Spool.Share {
        switch self {
        case .notification: .notifications
        case .deadLetter(let received, _): received.share
        }
    }

    fileprivate var tokenDigest: [UInt8] {
        switch self {
        case .notification(let received):
            let token = received.notification.token
            return SHA256.digest(token.span)
        case .deadLetter(let received, _):
            return received.tokenDigest
        }
    }
}

/// The spool's directory, as the writer looks after it.
extension NotificationWriter {
    /// Looks for files that came or went, and for such that are nothing of ours.
    func scan() async {
        guard let spool = intake.spool else { return }
        do {
            let scan = try await spool.scan()
            intake.durable.spoolLost(spool.losses)
            report(scan.setAside)
            reportUntrusted(scan.untrusted)
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

    /// Forgets what was durable in files that are gone.
    private func followLosses() async {
        guard let spool = intake.spool else { return }
        // A directory that can't be used is reported by the write that follows.
        try? await spool.followDirectory()
        intake.durable.spoolLost(spool.losses)
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

    /// Reports files that are not read because others could have written them.
    private func reportUntrusted(_ files: [String]) {
        intake.metrics.spoolFilesUntrusted.set(files.count)
        guard let first = files.first, line.withLock({ $0.untrustedComplaint.isDue(first) }) else { return }
        intake.log.error(
            "a file in the spool directory is not trusted and not read; if siwad wrote it, give it to siwad's user alone "
                + "(chown, chmod 600), else remove it",
            ["file": first, "count": "\(files.count)"]
        )
    }

    func report(_ setAside: [Spool.SetAside]) {
        for file in setAside {
            intake.metrics.spoolFilesSetAside.increment(file.reason.rawValue)
            intake.durable.forgetAll()
            intake.log.error(
                "a file in the spool directory was set aside; look at it, and remove it when nothing in it is needed",
                ["file": file.path, "reason": file.reason.rawValue]
            )
        }
    }
}

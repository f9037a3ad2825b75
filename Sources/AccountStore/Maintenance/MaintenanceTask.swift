package import Basics

/// A periodic task of the daemons (`siwa.maintenance.task`).
package enum MaintenanceTask: String, Sendable, CaseIterable {
    /// Creates the partitions of the coming months.
    case partitions
    /// Deletes notifications and resolved dead letters that are older than the retention.
    case retention
    /// Erases the personal data of people whose Apple Account was deleted.
    case erasure
    /// Deletes sessions that ended or expired long ago.
    case sessions
    /// Deletes deliveries that were delivered or discarded long ago, with their attempts.
    case deliveries
    /// Deletes old sign-ins, and gives up codes that were not traded in time.
    case signIns = "sign-ins"
    /// Deletes refresh tokens and names of people who revoked their consent, and refresh tokens of deleted accounts.
    case tokens

    /// The period of the task in maintenance intervals. Sessions are scanned less often, because the scan reads the account and
    /// consent of each old session.
    package var intervals: Int { self == .sessions ? 24 : 1 }
}

/// How long rows and personal data are kept.
package struct MaintenancePolicy: Sendable, Equatable {
    /// For notifications and resolved dead letters; at least a day.
    package var retention: Duration
    /// For sessions, after they ended or expired.
    package var sessionRetention: Duration
    /// For personal data, after the deletion of the account.
    package var eraseAfter: Duration
    /// For deliveries, after they were delivered or discarded.
    package var deliveryRetention: Duration
    /// For sign-ins, after their request.
    package var signInRetention: Duration

    package init(
        retention: Duration,
        sessionRetention: Duration,
        eraseAfter: Duration,
        deliveryRetention: Duration,
        signInRetention: Duration = .seconds(30 * 86_400)
    ) {
        self.retention = retention
        self.sessionRetention = sessionRetention
        self.eraseAfter = eraseAfter
        self.deliveryRetention = deliveryRetention
        self.signInRetention = signInRetention
    }
}

package enum MaintenanceClaim: Sendable, Equatable {
    /// The caller may perform the task until its transaction ends. `now` is the database's time, `finishedAt` when the task
    /// was last finished.
    case granted(now: WallTime, finishedAt: WallTime?)
    case heldElsewhere
    case notDue(finishedAt: WallTime)
}

package struct MaintenanceEffects: Sendable, Equatable {
    package var partitionsCreated = 0
    package var partitionsDropped: [String] = []
    package var lettersDeleted = 0
    package var sessionsDeleted = 0
    package var accountsErased = 0
    package var tokensErased = 0
    package var lettersErased = 0
    package var deliveriesDeleted = 0
    package var signInsDeleted = 0
    /// Authorization codes that were not traded in time.
    package var codesErased = 0
    package var refreshTokensDeleted = 0
    package var namesDeleted = 0

    package init() {}

    package static func + (one: MaintenanceEffects, other: MaintenanceEffects) -> MaintenanceEffects {
        var sum = one
        sum.partitionsCreated += other.partitionsCreated
        sum.partitionsDropped += other.partitionsDropped
        sum.lettersDeleted += other.lettersDeleted
        sum.sessionsDeleted += other.sessionsDeleted
        sum.accountsErased += other.accountsErased
        sum.tokensErased += other.tokensErased
        sum.lettersErased += other.lettersErased
        sum.deliveriesDeleted += other.deliveriesDeleted
        sum.signInsDeleted += other.signInsDeleted
        sum.codesErased += other.codesErased
        sum.refreshTokensDeleted += other.refreshTokensDeleted
        sum.namesDeleted += other.namesDeleted
        return sum
    }
}

/// One bounded step of a task.
package struct MaintenanceStep: Sendable, Equatable {
    package let effects: MaintenanceEffects
    package let isLast: Bool
    /// The page at which the next step of a scan continues.
    var nextPage: Int64 = 0
}

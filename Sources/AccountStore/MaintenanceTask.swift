package import AppleTokens

/// What a daemon does for the database from time to time (`siwa.maintenance.task`).
package enum MaintenanceTask: String, Sendable, CaseIterable {
    /// The months ahead get their partitions.
    case partitions
    /// Notifications and resolved dead letters that are older than the retention go.
    case retention
    /// What is personal about people whose Apple Account was deleted goes.
    case erasure
    /// Sessions that ended or expired long ago go.
    case sessions

    /// How many intervals pass between two times that the task is done. The scan of the sessions reads the account and the
    /// consent of each old session, so it is done less often.
    package var intervals: Int { self == .sessions ? 24 : 1 }
}

/// How long things are kept.
package struct MaintenancePolicy: Sendable, Equatable {
    /// For how long notifications and resolved dead letters are kept; at least a day.
    package var retention: Duration
    /// For how long sessions are kept after they ended or expired.
    package var sessionRetention: Duration
    /// For how long after the deletion of an account its personal data are kept.
    package var eraseAfter: Duration

    /// A policy of these times.
    package init(retention: Duration, sessionRetention: Duration, eraseAfter: Duration) {
        self.retention = retention
        self.sessionRetention = sessionRetention
        self.eraseAfter = eraseAfter
    }
}

/// Whether a task may be done now, and by whom.
package enum MaintenanceTurn: Sendable, Equatable {
    /// By the one who asked, until the end of its transaction. The time is the database's.
    case ours(now: WallTime)
    /// Another daemon is at it.
    case taken
    /// It was done lately.
    case notDue(finishedAt: WallTime)
}

/// What maintenance did.
package struct MaintenanceEffects: Sendable, Equatable {
    /// Months that got their partition.
    package var partitionsCreated = 0
    /// The partitions that were dropped.
    package var partitionsDropped: [String] = []
    /// Resolved dead letters that were deleted.
    package var lettersDeleted = 0
    /// Sessions that were deleted.
    package var sessionsDeleted = 0
    /// Accounts that became tombstones.
    package var accountsErased = 0
    /// Notifications whose token was erased.
    package var tokensErased = 0
    /// Dead letters whose body was erased.
    package var lettersErased = 0

    /// Nothing at all.
    package init() {}

    /// Both together.
    package static func + (one: MaintenanceEffects, other: MaintenanceEffects) -> MaintenanceEffects {
        var sum = one
        sum.partitionsCreated += other.partitionsCreated
        sum.partitionsDropped += other.partitionsDropped
        sum.lettersDeleted += other.lettersDeleted
        sum.sessionsDeleted += other.sessionsDeleted
        sum.accountsErased += other.accountsErased
        sum.tokensErased += other.tokensErased
        sum.lettersErased += other.lettersErased
        return sum
    }
}

/// One bounded piece of a task.
package struct MaintenanceStep: Sendable, Equatable {
    /// What it did.
    package let effects: MaintenanceEffects
    /// Whether nothing is left to do.
    package let isLast: Bool
    /// The page of the table at which the next step of a scan continues.
    let nextPage: Int64

    init(effects: MaintenanceEffects, isLast: Bool, nextPage: Int64 = 0) {
        self.effects = effects
        self.isLast = isLast
        self.nextPage = nextPage
    }
}

package import AppleTokens

/// A verified notification and when it reached us.
///
/// A class, so that the batches and answers that it goes through carry one reference each, not the dozen of its texts.
package final class ReceivedNotification: Sendable, Equatable {
    /// What Apple signed.
    package let notification: VerifiedNotification
    /// When its request was read, by this machine's clock.
    package let receivedAt: WallTime

    /// A notification that was received at a time.
    package init(_ notification: VerifiedNotification, receivedAt: WallTime) {
        self.notification = notification
        self.receivedAt = receivedAt
    }

    /// Equal in everything.
    package static func == (lhs: ReceivedNotification, rhs: ReceivedNotification) -> Bool {
        lhs.notification == rhs.notification && lhs.receivedAt == rhs.receivedAt
    }
}

/// Which way a notification came to the database (`siwa.notifications.source`).
package enum NotificationSource: String, Sendable, CaseIterable {
    /// Straight from a request.
    case endpoint
    /// From the spool, after PostgreSQL had been away.
    case spool
    /// From a dead letter that an operator replayed.
    case replay
}

/// What a notification did (`siwa.notifications.outcome`), or that it was there already.
package enum NotificationOutcome: String, Sendable, CaseIterable {
    /// It changed a state, an address, or ended sessions.
    case applied
    /// A newer fact was known, or the account is deleted: its own fact is kept and decides nothing.
    case superseded
    /// The state was already what it says.
    case unchanged
    /// A notification of that `jti` was stored before; this one left nothing.
    case duplicate
}

/// What became of one notification of a batch.
package struct RecordedNotification: Sendable, Equatable {
    /// What it did.
    package let outcome: NotificationOutcome
    /// How many live sessions it ended.
    package let sessionsEnded: Int
}

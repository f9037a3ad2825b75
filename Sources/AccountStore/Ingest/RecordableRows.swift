import AppleTokens
import Postgres

/// A batch as ``Notifications/record(_:source:in:)`` sends it: one row per notification, with the registers that the batch
/// has for its person and its consent.
struct RecordableRows {
    private let batch: [ReceivedNotification]
    private let facts: BatchFacts

    init(_ batch: [ReceivedNotification]) {
        self.batch = batch
        facts = BatchFacts(batch)
    }

    func binds(from source: NotificationSource) -> Binds {
        let count = batch.count
        return Binds { binds in
            binds.reserveCapacity(bytes: count * 1_400)
            binds.appendTexts(count) { person($0).subject.rawValue }
            binds.appendTexts(count) { person($0).team.rawValue }
            binds.appendTexts(count) { consent($0).app.rawValue }
            binds.appendBools(count) { $0 == 0 || consent($0).person != consent($0 - 1).person }
            binds.appendBools(count) { $0 == 0 || consentIndex($0) != consentIndex($0 - 1) }
            binds.appendTimestamps(count) { person($0).deleted.map { Timestamp($0.time) } }
            binds.appendTimestamps(count) { person($0).forwardingDisabled.map { Timestamp($0.time) } }
            binds.appendTimestamps(count) { person($0).forwardingEnabled.map { Timestamp($0.time) } }
            binds.appendTimestamps(count) { person($0).address.map { Timestamp($0.observedAt) } }
            binds.appendTexts(count) { person($0).address?.email }
            binds.appendBools(count) { person($0).address?.isPrivate }
            binds.appendTimestamps(count) { consent($0).revoked.map { Timestamp($0.time) } }
            binds.appendTexts(count) { notification($0).id.rawValue }
            binds.appendTimestamps(count) { Timestamp(notification($0).issuedAt) }
            binds.appendTimestamps(count) { Timestamp(batch[facts.order[$0]].receivedAt) }
            binds.appendTexts(count) { notification($0).event.rawType }
            binds.appendTimestamps(count) { Timestamp(notification($0).event.time) }
            binds.appendBools(count) { facts.leads[facts.order[$0]] }
            binds.appendBools(count) { facts.providesAddress[facts.order[$0]] }
            binds.appendTexts(count) { notification($0).keyID }
            binds.appendTextBytes(count) { notification($0).token }
            binds.append(source.rawValue)
        }
    }

    /// The effect of each notification, in the order of the batch, from the rows that the statement returned. Duplicates
    /// have no row. PostgreSQL returns the rows in the order sent but does not guarantee that, so they are found by id.
    ///
    /// A trigger of the operator may change the id of a row. Such rows are assigned in order to the notifications without a
    /// row.
    func recorded(_ rows: borrowing Rows) throws(PostgresError) -> [RecordedNotification] {
        var recorded = [RecordedNotification?](repeating: nil, count: batch.count)
        var unmatched: [RecordedNotification] = []
        var next = 0
        for row in 0..<rows.count {
            let id = try rows.string(row, 0)
            func isNamed(_ index: Int) -> Bool {
                batch[index].notification.id.rawValue.utf8.elementsEqual(id.utf8)
            }
            let order = facts.order
            guard let outcome = NotificationOutcome(rawValue: try rows.string(row, 1)) else {
                throw PostgresError(.decoding, "a notification has an unknown outcome; check your triggers")
            }
            let result = RecordedNotification(outcome: outcome, sessionsEnded: Int(try rows.int32(row, 2)))
            if let place = order[next...].firstIndex(where: isNamed) ?? order[..<next].firstIndex(where: isNamed) {
                recorded[order[place]] = result
                next = place + 1
            } else {
                unmatched.append(result)
            }
        }
        for index in facts.order where recorded[index] == nil && !unmatched.isEmpty {
            recorded[index] = unmatched.removeFirst()
        }
        return recorded.map { $0 ?? RecordedNotification(outcome: .duplicate, sessionsEnded: 0) }
    }

    // MARK: - Parts of a row

    private func notification(_ row: Int) -> VerifiedNotification { batch[facts.order[row]].notification }

    private func consentIndex(_ row: Int) -> Int { facts.consentIndices[facts.order[row]] }

    private func consent(_ row: Int) -> BatchFacts.Consent { facts.consents[consentIndex(row)] }

    private func person(_ row: Int) -> BatchFacts.Person { facts.persons[consent(row).person] }
}

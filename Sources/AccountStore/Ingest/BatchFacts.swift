import AppleTokens
import Basics

/// The facts of a batch, merged for each person and each consent before the batch is sent to the database.
///
/// Registers keep the earliest or the latest time, so merging within the batch first does not change the result. It costs
/// much less here than in the database.
struct BatchFacts {
    /// The time of a register and the notification that provides it.
    struct Register {
        let time: WallTime
        /// The index in the batch of the notification that provides the time; of equal times the first one.
        let leader: Int

        func orEarlier(_ other: Register?) -> Register {
            guard let other, other.time.microseconds != time.microseconds else { return first(of: other) }
            return other.time.microseconds < time.microseconds ? other : self
        }

        func orLater(_ other: Register?) -> Register {
            guard let other, other.time.microseconds != time.microseconds else { return first(of: other) }
            return other.time.microseconds > time.microseconds ? other : self
        }

        private func first(of other: Register?) -> Register {
            guard let other, other.leader < leader else { return self }
            return other
        }
    }

    /// An observed address and the notification that names it.
    struct Address {
        let observedAt: WallTime
        let email: String
        let isPrivate: Bool?
        /// The index in the batch of the notification; of equal observations the first one.
        let provider: Int

        /// The later observation. At equal times the greater address by bytes wins, then the greater flag, as in
        /// `siwa.observation_wins`.
        func orWinner(_ other: Address?) -> Address {
            guard let other else { return self }
            if other.observedAt != observedAt {
                return other.observedAt.microseconds > observedAt.microseconds ? other : self
            }
            if !other.email.utf8.elementsEqual(email.utf8) {
                return email.utf8.lexicographicallyPrecedes(other.email.utf8) ? other : self
            }
            if other.isPrivate != isPrivate { return Self.rank(other.isPrivate) > Self.rank(isPrivate) ? other : self }
            return other.provider < provider ? other : self
        }

        private static func rank(_ flag: Bool?) -> Int {
            flag.map { $0 ? 1 : 0 } ?? -1
        }
    }

    /// The registers of an account that the batch may move, each the earliest (deletion) or latest (all others) time.
    struct Person {
        let subject: Subject
        let team: TeamID
        var deleted: Register?
        var forwardingDisabled: Register?
        var forwardingEnabled: Register?
        var address: Address?
    }

    /// The register of a consent that the batch may move: the latest revocation.
    struct Consent {
        /// Its index in ``persons``.
        let person: Int
        let app: AppID
        var revoked: Register?
    }

    /// The people in the batch, ordered by `sub`, then team: the order in which every writer locks rows.
    private(set) var persons: [Person] = []
    /// One for each person and app group, ordered by person, then app.
    private(set) var consents: [Consent] = []
    /// The indices of the notifications, ordered by consent, then by position in the batch.
    let order: [Int]
    /// For each notification, in the order of the batch, the index of its consent.
    private(set) var consentIndices: [Int]
    /// For each notification, in the order of the batch, whether it provides the time of its register.
    private(set) var leads: [Bool]
    /// For each notification, in the order of the batch, whether it provides the address of its person.
    private(set) var providesAddress: [Bool]

    init(_ batch: [ReceivedNotification]) {
        order = Self.order(of: batch)
        consentIndices = Array(repeating: 0, count: batch.count)
        leads = Array(repeating: false, count: batch.count)
        providesAddress = leads
        for index in order {
            let notification = batch[index].notification
            if !isLastPerson(notification) {
                persons.append(Person(subject: notification.event.subject, team: notification.team))
            }
            if consents.last?.person != persons.count - 1 || consents.last?.app != notification.app {
                consents.append(Consent(person: persons.count - 1, app: notification.app))
            }
            consentIndices[index] = consents.count - 1
            merge(notification.event, of: index)
        }
        for person in persons {
            mark(person.deleted)
            mark(person.forwardingDisabled)
            mark(person.forwardingEnabled)
            if let address = person.address { providesAddress[address.provider] = true }
        }
        for consent in consents { mark(consent.revoked) }
    }

    // MARK: - Private parts

    /// Sorts the batch by person, then app, then position. The key has the first bytes of the subject, which nearly always
    /// decide the comparison.
    private static func order(of batch: [ReceivedNotification]) -> [Int] {
        var keys: [(beginning: UInt64, index: Int)] = []
        keys.reserveCapacity(batch.count)
        for index in batch.indices { keys.append((beginning(of: batch[index].notification.event.subject), index)) }
        keys.sort { lhs, rhs in
            if lhs.beginning != rhs.beginning { return lhs.beginning < rhs.beginning }
            let (left, right) = (batch[lhs.index].notification, batch[rhs.index].notification)
            if precedes(left, right) { return true }
            return !precedes(right, left) && lhs.index < rhs.index
        }
        return keys.map(\.index)
    }

    /// The first eight bytes as a big-endian number; a shorter subject is padded with zeros.
    private static func beginning(of subject: Subject) -> UInt64 {
        var number: UInt64 = 0
        var missing: UInt64 = 8
        for byte in subject.rawValue.utf8.prefix(8) {
            number = number << 8 | UInt64(byte)
            missing -= 1
        }
        return number << (8 * missing)
    }

    private static func precedes(_ lhs: VerifiedNotification, _ rhs: VerifiedNotification) -> Bool {
        if lhs.event.subject != rhs.event.subject { return lhs.event.subject < rhs.event.subject }
        return lhs.team != rhs.team ? lhs.team < rhs.team : lhs.app < rhs.app
    }

    private func isLastPerson(_ notification: VerifiedNotification) -> Bool {
        guard let last = persons.last else { return false }
        return last.subject == notification.event.subject && last.team == notification.team
    }

    /// Merges an event into the registers of the last person and the last consent.
    private mutating func merge(_ event: AccountEvent, of index: Int) {
        let register = Register(time: event.time, leader: index)
        let (person, consent) = (persons.count - 1, consents.count - 1)
        switch event.kind {
        case .accountDeleted:
            persons[person].deleted = register.orEarlier(persons[person].deleted)
        case .emailDisabled:
            persons[person].forwardingDisabled = register.orLater(persons[person].forwardingDisabled)
        case .emailEnabled:
            persons[person].forwardingEnabled = register.orLater(persons[person].forwardingEnabled)
        case .consentRevoked:
            consents[consent].revoked = register.orLater(consents[consent].revoked)
        }
        if let email = event.email {
            let address = Address(
                observedAt: event.time,
                email: email,
                isPrivate: event.emailIsPrivate,
                provider: index
            )
            persons[person].address = address.orWinner(persons[person].address)
        }
    }

    private mutating func mark(_ register: Register?) {
        if let register { leads[register.leader] = true }
    }
}

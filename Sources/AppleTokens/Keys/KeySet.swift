package import Basics
package import JOSE
import Synchronization

/// An immutable snapshot of Apple's keys at one time.
package struct KeySet: Sendable {
    /// Each `kid` once.
    package let keys: [JSONWebKey]
    /// `kid`s of keys in Apple's set that cannot be used. They are not absent. None of them is in ``keys``.
    package let unusable: Set<String>
    /// When it was fetched from Apple's endpoint; nil for keys that were stored by an earlier run.
    package let fetchedAt: WallTime?
    /// When Apple's endpoint last returned these keys, in this run or an earlier one; nil if unknown.
    package let confirmedAt: WallTime?
    /// Unique in this process and increasing. Prepared keys are stored under it.
    package let version: Int

    package static let none = KeySet([], fetchedAt: nil)

    private static let lastVersion = Atomic<Int>(0)

    /// Of several keys with the same `kid` the first one counts.
    ///
    /// - Parameter confirmedAt: for keys that were stored by an earlier run.
    package init(
        _ keys: [JSONWebKey],
        unusable: some Sequence<String> = [],
        fetchedAt: WallTime?,
        confirmedAt: WallTime? = nil
    ) {
        var names: Set<String> = []
        self.keys = keys.filter { names.insert($0.keyID).inserted }
        self.unusable = Set(unusable).subtracting(names)
        self.fetchedAt = fetchedAt
        self.confirmedAt = fetchedAt ?? confirmedAt
        self.version = Self.lastVersion.add(1, ordering: .relaxed).newValue
    }

    package init(_ set: JSONWebKeySet, fetchedAt: WallTime?) {
        self.init(set.keys, unusable: set.ignored.compactMap(\.keyID), fetchedAt: fetchedAt)
    }

    package var isEmpty: Bool { keys.isEmpty }

    package func contains(kid: String) -> Bool {
        keys.contains { $0.keyID == kid }
    }

    /// True if it has no key of that name, not even an unusable one.
    package func lacks(kid: String) -> Bool {
        !contains(kid: kid) && !unusable.contains(kid)
    }
}

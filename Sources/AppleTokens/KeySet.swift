package import Basics
package import JOSE
import Synchronization

/// Apple's keys as they were at one time: an immutable snapshot that any number of threads may hold.
package struct KeySet: Sendable {
    /// The keys, each `kid` once.
    package let keys: [JSONWebKey]
    /// Names of keys that Apple's set has and that can't be used: they are not absent. None is also in ``keys``.
    package let unusable: Set<String>
    /// When Apple's endpoint was asked for it; nil for keys that were kept from an earlier run.
    package let fetchedAt: WallTime?
    /// When Apple's endpoint last had these keys, in this run or an earlier one; nil where that is not known.
    package let confirmedAt: WallTime?
    /// Tells this set from every other one made in this process; later ones have higher numbers. What is prepared for a
    /// set is kept under it.
    package let version: Int

    /// No keys.
    package static let none = KeySet([], fetchedAt: nil)

    private static let lastVersion = Atomic<Int>(0)

    /// A snapshot of `keys`; of several with the same `kid` the first counts.
    ///
    /// - Parameter confirmedAt: for keys that were kept from an earlier run.
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

    /// A snapshot of what Apple's endpoint returned at `fetchedAt`.
    package init(_ set: JSONWebKeySet, fetchedAt: WallTime?) {
        self.init(set.keys, unusable: set.ignored.compactMap(\.keyID), fetchedAt: fetchedAt)
    }

    /// Whether it has no key.
    package var isEmpty: Bool { keys.isEmpty }

    /// The key of that name.
    package func key(_ kid: String) -> JSONWebKey? {
        keys.first { $0.keyID == kid }
    }

    /// Whether it has a key of that name.
    package func contains(kid: String) -> Bool {
        keys.contains { $0.keyID == kid }
    }

    /// Whether it has no key of that name, not even one that can't be used.
    package func lacks(kid: String) -> Bool {
        !contains(kid: kid) && !unusable.contains(kid)
    }
}

/// The files of the spool, oldest first, and their sizes. No I/O.
struct SpoolIndex {
    struct File: Equatable {
        let name: String
        let size: Int64
        let share: Spool.Share

        init(name: String, size: Int64) {
            self.name = name
            self.size = size
            share = Spool.Share.limited.first { name.contains($0.rawValue) } ?? .notifications
        }

        /// Whether it holds one record that the database refused while it accepted others.
        var isRefused: Bool { name.hasSuffix(refusedSuffix) }

        /// Whether it holds so little that it is merged with others. File systems usually have an inode for so many bytes.
        var isSmall: Bool { size < 16_384 && !isRefused }
    }

    private(set) var files: [File] = []
    private(set) var bytes: Int64 = 0
    private var lastStamp: Int64 = 0
    /// The small files that were added since the last merge.
    private var smallFilesAdded = 0

    /// A name that sorts after all others, even if the clock goes back. `now` is in microseconds since 1970.
    mutating func nextName(now: Int64, share: Spool.Share = .notifications, isRefused: Bool = false) -> String {
        lastStamp = max(now, lastStamp + 1)
        let number = String(lastStamp)
        let padding = String(repeating: "0", count: Self.digits - number.utf8.count)
        return padding + number + share.rawValue + (isRefused ? Self.refusedSuffix : Self.suffix)
    }

    func bytes(of shares: [Spool.Share]) -> Int64 {
        files.reduce(0) { shares.contains($1.share) ? $0 + $1.size : $0 }
    }

    mutating func added(_ file: File) {
        files.append(file)
        bytes += file.size
        if file.isSmall { smallFilesAdded += 1 }
    }

    /// Small files are merged in groups of at least this number.
    static let mergedFiles = 50

    /// Whether there are enough new small files for a merge, which is to follow.
    mutating func mustMerge() -> Bool {
        guard smallFilesAdded >= Self.mergedFiles else { return false }
        smallFilesAdded = 0
        return true
    }

    /// The newest small files of a share, which may be merged already; none if they are too few for a merge.
    func smallFiles(of share: Spool.Share) -> [File] {
        let small = files.filter { $0.isSmall && $0.share == share }
        return small.count < Self.mergedFiles ? [] : small.suffix(2 * Self.mergedFiles)
    }

    /// Files were removed, or renamed to a name that is not the spool's.
    mutating func removed(_ names: some Collection<String>) {
        let first = files.prefix(names.count)
        if first.map(\.name).elementsEqual(names) {
            // Usually the oldest ones: no need to search thousands of others.
            bytes -= first.reduce(0) { $0 + $1.size }
            files.removeFirst(first.count)
            return
        }
        let names = Set(names)
        files.removeAll { names.contains($0.name) }
        bytes = files.reduce(0) { $0 + $1.size }
    }

    /// From now on, files are read after all others.
    mutating func postponed(_ names: some Collection<String>) {
        let names = Set(names)
        files = files.filter { !names.contains($0.name) } + files.filter { names.contains($0.name) }
    }

    /// A scan found these files; returns whether others are gone.
    @discardableResult
    mutating func found(_ found: [File]) -> Bool {
        let places = Dictionary(uniqueKeysWithValues: files.enumerated().map { ($1.name, $0) })
        let isComplete = Set(found.map(\.name)).isSuperset(of: places.keys)
        // A known file keeps its place, which may be a postponed one.
        files = found.sorted { (places[$0.name] ?? .max, $0.name) < (places[$1.name] ?? .max, $1.name) }
        bytes = files.reduce(0) { $0 + $1.size }
        lastStamp = max(lastStamp, files.compactMap { Self.stamp($0.name) }.max() ?? 0)
        return !isComplete
    }

    static func isName(_ name: String) -> Bool { stamp(name) != nil }

    private static let suffix = ".spool"
    private static let refusedSuffix = ".refused.spool"
    private static let digits = 20
    /// A larger stamp would leave no name that sorts after it.
    private static let lastPossibleStamp = Int64.max / 2

    private static func stamp(_ name: String) -> Int64? {
        let suffix = name.hasSuffix(refusedSuffix) ? refusedSuffix : suffix
        guard name.hasSuffix(suffix) else { return nil }
        var number = name.dropLast(suffix.count)
        if let share = Spool.Share.limited.first(where: { number.hasSuffix($0.rawValue) }) {
            number = number.dropLast(share.rawValue.count)
        }
        guard number.utf8.count == digits else { return nil }
        guard number.utf8.allSatisfy({ UInt8(ascii: "0")...UInt8(ascii: "9") ~= $0 }) else { return nil }
        return Int64(number).flatMap { $0 <= lastPossibleStamp ? $0 : nil }
    }
}

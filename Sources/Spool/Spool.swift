import Dispatch
import Glibc
import Synchronization

/// Requests that wait on disk for the database: one file a batch, written for good before anybody is answered, read back
/// oldest first, and removed when the database has them.
///
/// All of its work is done on a thread of its own, so that a slow disk holds up nobody but those who wait for it.
package final class Spool: Sendable {
    /// Some of the oldest records.
    package struct Batch: Sendable {
        /// The files that they are from.
        package let files: [String]
        /// The records, oldest first.
        package let records: [SpoolRecord]
        /// Why one of the files could not be read; it stays, and others come first the next time. `nil`: all could.
        package let unread: SpoolError?
        /// How many of them each file holds.
        let counts: [Int]
    }

    /// Whose room records take. What may be thrown away without loss to a notification can't take its room.
    package enum Share: Sendable, CaseIterable {
        /// Notifications, which may take all of it.
        case notifications
        /// Dead letters that Apple signed. With the unverified ones they take a tenth at most.
        case letters
        /// Dead letters of which nothing is verified. Any sender can cause them, so they take a twentieth at most.
        case unverified

        /// Those that can't have all of it.
        static let limited = [letters, unverified]

        /// Of how many parts of the spool it may take one, and together with which others.
        fileprivate var bounds: [(divisor: Int64, shares: [Share])] {
            switch self {
            case .notifications: []
            case .letters: [(10, Self.limited)]
            case .unverified: [(10, Self.limited), (20, [.unverified])]
            }
        }
    }

    /// Which files are meant.
    package enum Part: Sendable {
        /// Those that wait for the database.
        case waiting
        /// Those that hold what the database refused while it took others, each a record.
        case refused
    }

    /// A file that was given another name, so that it is no longer in the way.
    package struct SetAside: Sendable, Equatable {
        /// Why.
        package enum Reason: String, Sendable, CaseIterable {
            /// It was cut or changed.
            case torn
            /// It is nothing of siwad's.
            case foreign
            /// It holds a record with a bad signature.
            case forged
        }

        /// Why.
        package let reason: Reason
        /// Its path.
        package let path: String
    }

    /// The result of a look into the directory.
    package struct Scan: Sendable, Equatable {
        /// Files that were given another name.
        package let setAside: [SetAside]
        /// Files that are not read because others could have written them, each with the cause. They stay as they are.
        package let untrusted: [String]
    }

    private let directory: SpoolDirectory
    private let limit: Int64
    private let index = Mutex(SpoolIndex())
    /// The size of the file that was refused last, in bytes; a block where none was.
    private let wanted = Atomic<Int64>(leastRoom)
    private let thread = DispatchQueue(label: "siwad.spool")

    /// What torn files end in.
    package static let tornSuffix = ".corrupt"
    /// What files end in that are nothing of ours.
    package static let foreignSuffix = ".foreign"
    /// Suffix of files that hold a record with a bad signature.
    package static let forgedSuffix = ".forged"

    /// Opens a directory, which is created if its parent is there, and locks it. Blocks for a moment. Call ``scan()``
    /// next.
    ///
    /// - Parameter limit: in bytes.
    /// - Throws: `unusable`, `inUse`.
    package init(directory path: String, limit: Int64) throws(SpoolError) {
        directory = try SpoolDirectory(path)
        self.limit = limit
        directory.removeUnfinished()
    }

    /// Lets another process have the directory, as the end of this one would. Nothing may be appended or removed any more.
    package func unlock() {
        directory.unlock()
    }

    /// What waits, in bytes.
    package var bytes: Int64 { index.withLock { $0.bytes } }

    /// Whether there is nothing.
    package var isEmpty: Bool { index.withLock { $0.files.isEmpty } }

    /// Whether there are files of a part.
    package func holds(_ part: Part) -> Bool {
        index.withLock { $0.files.contains { $0.isRefused == (part == .refused) } }
    }

    /// Finds the files in the directory. Foreign files are set aside. Sub-directories, hidden files, and files that others
    /// could have written stay.
    package func scan() async throws(SpoolError) -> Scan {
        try await onThread { () throws(SpoolError) in
            var files: [SpoolIndex.File] = []
            var setAside: [SetAside] = []
            var untrusted: [String] = []
            for name in try self.directory.names() {
                switch self.directory.entry(name) {
                case .other:
                    continue
                case .untrusted(let file):
                    untrusted.append("\(file.path): \(file.objection)")
                case .file(let size):
                    if SpoolIndex.isName(name) {
                        files.append(SpoolIndex.File(name: name, size: size))
                    } else if !Self.suffixesSetAside.contains(where: name.hasSuffix) {
                        setAside.append(try self.setAside(name, .foreign))
                    }
                }
            }
            self.index.withLock { $0.found(files) }
            return Scan(setAside: setAside, untrusted: untrusted)
        }
    }

    /// Makes records durable.
    ///
    /// - Parameter share: whose room they take.
    /// - Throws: `full`, `shareFull`, `failed`, and what opening throws when the directory was replaced. Nothing is kept
    ///   then.
    package func append(_ records: [SpoolRecord], share: Share = .notifications) async throws(SpoolError) {
        try await onThread { () throws(SpoolError) in
            let bytes = SpoolFile.encoded(records)
            let size = Int64(bytes.count)
            try self.checkShare(share, for: size)
            self.wanted.store(max(size, Self.leastRoom), ordering: .relaxed)
            try self.checkRoom(for: size)
            try self.write(bytes, share: share)
        }
    }

    /// Whether as much as was wanted last could be made durable at present.
    ///
    /// - Throws: as ``append(_:)``.
    package func check() async throws(SpoolError) {
        try await onThread { () throws(SpoolError) in
            let size = min(self.wanted.load(ordering: .relaxed), self.limit)
            try self.checkRoom(for: size)
            try self.directory.checkRoom(for: Int(size))
        }
    }

    /// The oldest records that fit one transaction: whole files, at least one if there is any.
    ///
    /// - Returns: the records, and which files turned out to be torn and were set aside.
    package func oldest(
        _ part: Part = .waiting,
        atMost count: Int
    ) async throws(SpoolError) -> (batch: Batch, setAside: [SetAside]) {
        try await onThread { () throws(SpoolError) in
            var files: [String] = []
            var records: [SpoolRecord] = []
            var counts: [Int] = []
            var setAside: [SetAside] = []
            var unread: SpoolError?
            var batch: Batch {
                Batch(
                    files: files,
                    records: records,
                    unread: unread,
                    counts: counts
                )
            }
            for name in self.names(part, atMost: max(1, count)) {
                switch try self.directory.read(name) {
                case .content(let bytes):
                    guard let found = SpoolFile.decoded(bytes) else {
                        setAside.append(try self.setAside(name, .torn))
                        continue
                    }
                    guard files.isEmpty || records.count + found.count <= count else {
                        return (batch, setAside)
                    }
                    files.append(name)
                    records += found
                    counts.append(found.count)
                case .unreadable(let error):
                    unread = unread ?? error
                    self.index.withLock { $0.postponed([name]) }
                case .untrusted, .absent:
                    // The next scan reports an untrusted file.
                    self.index.withLock { $0.removed([name]) }
                }
            }
            return (batch, setAside)
        }
    }

    /// Lets all other files come first from here on: the database would not have these.
    package func postpone(_ batch: Batch) {
        index.withLock { $0.postponed(batch.files) }
    }

    /// Removes what the database has.
    package func remove(_ batch: Batch) async throws(SpoolError) {
        try await onThread { () throws(SpoolError) in
            for name in batch.files { try self.directory.remove(name) }
            self.index.withLock { $0.removed(batch.files) }
        }
    }

    /// Removes what the database has of a batch, and sees to it that each record that it refuses is alone in a file which
    /// says so: whatever refuses it holds up no other. A crash in between leaves some records twice, none not at all.
    ///
    /// - Parameter refused: where the refused ones stand among the batch's records.
    package func setApart(_ refused: Set<Int>, of batch: Batch) async throws(SpoolError) {
        try await onThread { () throws(SpoolError) in
            var first = 0
            for (name, count) in zip(batch.files, batch.counts) {
                let kept = (first..<first + count).filter(refused.contains)
                first += count
                let file = SpoolIndex.File(name: name, size: 0)
                if count == 1, kept.count == 1, file.isRefused {
                    self.index.withLock { $0.postponed([name]) }
                    continue
                }
                for position in kept {
                    try self.write(SpoolFile.encoded([batch.records[position]]), share: file.share, isRefused: true)
                }
                try self.directory.remove(name)
                self.index.withLock { $0.removed([name]) }
            }
        }
    }

    /// Writes each record with a bad signature into a file of its own, which siwad never reads. The files of the batch stay
    /// until the other records are removed or set apart.
    ///
    /// - Parameter forged: positions of these records in the batch.
    /// - Returns: the batch without them, and the new files.
    package func setAside(forged: Set<Int>, of batch: Batch) async throws(SpoolError) -> (Batch, [SetAside]) {
        guard !forged.isEmpty else { return (batch, []) }
        return try await onThread { () throws(SpoolError) in
            var setAside: [SetAside] = []
            var counts: [Int] = []
            var first = 0
            for (name, count) in zip(batch.files, batch.counts) {
                let found = (first..<first + count).filter(forged.contains)
                for position in found {
                    // The same name if the file is read again after a failure, so that there is one copy.
                    let apart = "\(name).\(position - first)\(Self.forgedSuffix)"
                    guard try self.directory.write(SpoolFile.encoded([batch.records[position]]), as: apart) else {
                        continue
                    }
                    setAside.append(SetAside(reason: .forged, path: "\(self.directory.path)/\(apart)"))
                }
                counts.append(count - found.count)
                first += count
            }
            let kept = batch.records.indices.filter { !forged.contains($0) }
            let rest = Batch(
                files: batch.files,
                records: kept.map { batch.records[$0] },
                unread: batch.unread,
                counts: counts
            )
            return (rest, setAside)
        }
    }

    // MARK: - Private parts

    private static let suffixesSetAside = [tornSuffix, foreignSuffix, forgedSuffix]

    /// Writes a file under an unused name.
    private func write(_ bytes: [UInt8], share: Share, isRefused: Bool = false) throws(SpoolError) {
        while true {
            let name = index.withLock { $0.nextName(now: Self.now(), share: share, isRefused: isRefused) }
            // Another process may have created a file of that name since the last scan.
            guard try directory.write(bytes, as: name) else { continue }
            return index.withLock { $0.added(SpoolIndex.File(name: name, size: Int64(bytes.count))) }
        }
    }

    private func names(_ part: Part, atMost count: Int) -> [String] {
        index.withLock { index in
            index.files.lazy.filter { $0.isRefused == (part == .refused) }.prefix(count).map(\.name)
        }
    }

    private static let leastRoom: Int64 = 4_096

    private func checkRoom(for size: Int64) throws(SpoolError) {
        let bytes = bytes
        guard bytes + size <= limit else {
            throw SpoolError(.full, "the spool \(directory.path) holds \(bytes) bytes of \(limit), its limit")
        }
    }

    private func checkShare(_ share: Share, for size: Int64) throws(SpoolError) {
        for (divisor, shares) in share.bounds {
            let bytes = index.withLock { $0.bytes(of: shares) }
            guard bytes + size <= limit / divisor else {
                throw SpoolError(
                    .shareFull,
                    "dead letters take \(bytes) bytes of the spool \(directory.path), their share of its \(limit)"
                )
            }
        }
    }

    private func setAside(_ name: String, _ reason: SetAside.Reason) throws(SpoolError) -> SetAside {
        let suffix =
            switch reason {
            case .torn: Self.tornSuffix
            case .foreign: Self.foreignSuffix
            case .forged: Self.forgedSuffix
            }
        let other = try directory.rename(name, appending: suffix)
        index.withLock { $0.removed([name]) }
        return SetAside(reason: reason, path: "\(directory.path)/\(other)")
    }

    private func onThread<R: Sendable>(
        _ work: @escaping @Sendable () throws(SpoolError) -> R
    ) async throws(SpoolError) -> R {
        let result: Result<R, SpoolError> = await withCheckedContinuation { waiter in
            thread.async {
                do throws(SpoolError) {
                    waiter.resume(returning: .success(try work()))
                } catch {
                    waiter.resume(returning: .failure(error))
                }
            }
        }
        return try result.get()
    }

    /// Microseconds since 1970.
    private static func now() -> Int64 {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return Int64(time.tv_sec) * 1_000_000 + Int64(time.tv_nsec) / 1_000
    }
}

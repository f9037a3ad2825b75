import Basics
import Dispatch
import Glibc
import Synchronization

package struct SpoolError: Error, Sendable, Equatable, CustomStringConvertible {
    package enum Code: Sendable {
        /// The directory can't be used as a spool; an operator has to change something.
        case unusable
        case inUse
        case full
        /// The part of the limit that such records may take is used up.
        case shareFull
        /// The system refuses to write, read or list at present: a full disk, too few file descriptors, missing rights.
        case failed
    }

    package let code: Code
    /// The cause and the next step, on one line; names paths, never content.
    package let message: String

    static func unusable(_ path: String, _ problem: String) -> SpoolError {
        SpoolError(code: .unusable, message: "the spool directory \(path) can't be used: \(problem)")
    }

    package var description: String { message }
}

/// Requests that wait on disk for the database: one file a batch, durable before the requests are answered, read back oldest
/// first, and removed when the database has them. Small files are merged, and then count from that time.
///
/// All work is done on a thread of its own, so that a slow disk delays only the callers that wait for it, for five seconds at
/// most. What is completed later counts all the same, since a record may be stored twice.
package final class Spool: Sendable {
    package struct Batch: Sendable {
        package fileprivate(set) var files: [String] = []
        package fileprivate(set) var records: [SpoolRecord] = []
        /// The cause why a file could not be read. It stays, and others come first the next time. `nil`: all were read.
        package fileprivate(set) var unread: SpoolError?
        fileprivate var counts: [Int] = []

        /// The files, each with the positions of its records.
        fileprivate var parts: [(file: String, positions: Range<Int>)] {
            var end = 0
            return zip(files, counts).map { file, count in
                defer { end += count }
                return (file, end..<end + count)
            }
        }
    }

    /// The kind of the records in a file, and the part of its name that says so. Dead letters can't use the room of
    /// notifications.
    package enum Share: String, Sendable, CaseIterable {
        /// Notifications, which may take all of it.
        case notifications = ""
        /// Dead letters that Apple signed. Together with the unverified ones they may take a tenth.
        case letters = ".letters"
        /// Dead letters without a verified signature. Any client can cause them, so they may take a twentieth.
        case unverified = ".unverified"

        static let limited = [letters, unverified]

        /// The limits: a part of the spool, and the shares that take it together.
        fileprivate var bounds: [(divisor: Int64, shares: [Share])] {
            switch self {
            case .notifications: []
            case .letters: [(10, Self.limited)]
            case .unverified: [(10, Self.limited), (20, [.unverified])]
            }
        }
    }

    package enum Part: Sendable {
        case waiting
        /// Files with one record each that the database refused while it accepted others.
        case refused
    }

    /// A file that was renamed, because it can't be stored.
    package struct SetAside: Sendable, Equatable {
        package enum Reason: String, Sendable, CaseIterable {
            /// It was cut or changed.
            case torn
            /// siwad did not write it.
            case foreign
            /// It holds a record with a bad signature.
            case forged

            fileprivate var suffix: String { self == .torn ? ".corrupt" : ".\(rawValue)" }
        }

        package let reason: Reason
        package let path: String
    }

    private let directory: SpoolDirectory
    package let limit: Int64
    private let index = Mutex(SpoolIndex())
    /// The size of the file that was refused last, in bytes, at least a block.
    private let wanted = Atomic<Int64>(leastRoom)
    let thread: SpoolThread
    /// Files that were set aside without a report to a caller: the one that waited for it may have given up.
    private let unreported = Mutex<[SetAside]>([])

    /// The limit on a batch of several files. The database client holds its records several times.
    private static let batchBytes: Int64 = 1 << 20

    /// Checks that siwad, run by `user`, would accept a directory, or could create it. Changes nothing.
    ///
    /// - Throws: `unusable`.
    package static func check(directory path: String, for user: UInt32 = geteuid()) throws(SpoolError) {
        try SpoolDirectory.check(path, for: user)
    }

    /// Opens a directory, which is created if its parent exists, and locks it. Blocks for some milliseconds. Call ``scan()``
    /// next.
    ///
    /// - Parameter limit: in bytes.
    /// - Throws: `unusable`, `inUse`, `failed`.
    package convenience init(directory path: String, limit: Int64) throws(SpoolError) {
        try self.init(directory: path, limit: limit, patience: .seconds(5))
    }

    /// - Parameter patience: how long a caller waits for the disk.
    init(directory path: String, limit: Int64, patience: DispatchTimeInterval) throws(SpoolError) {
        directory = try SpoolDirectory(path)
        self.limit = limit
        thread = SpoolThread(directory: path, patience: patience)
    }

    /// Releases the directory for another process. Append and remove nothing after this.
    package func unlock() {
        directory.unlock()
    }

    package var bytes: Int64 { index.withLock { $0.bytes } }

    package var isEmpty: Bool { index.withLock { $0.files.isEmpty } }

    /// Changes when records were lost that had been durable: another process removed files or the directory.
    package var losses: Int { directory.losses.load(ordering: .relaxed) }

    package func holds(_ part: Part) -> Bool {
        index.withLock { $0.files.contains { $0.isRefused == (part == .refused) } }
    }

    /// Uses the directory that the path leads to now, so that ``losses`` is up to date.
    ///
    /// - Throws: as ``init(directory:limit:)``.
    package func followDirectory() async throws(SpoolError) {
        try await thread.run { () throws(SpoolError) in try self.directory.reopenIfReplaced() }
    }

    /// Finds the files in the directory. Foreign files are set aside. Sub-directories and hidden files stay, and so do files
    /// that others could have written; these are returned with the cause.
    package func scan() async throws(SpoolError) -> (setAside: [SetAside], untrusted: [String]) {
        let untrusted = try await thread.run { () throws(SpoolError) in
            var files: [SpoolIndex.File] = []
            var untrusted: [String] = []
            for name in try self.directory.names() {
                switch self.directory.entry(name) {
                case .other:
                    continue
                case .untrusted(let file):
                    untrusted.append(file)
                case .file(let size):
                    if SpoolIndex.isName(name) {
                        files.append(SpoolIndex.File(name: name, size: size))
                    } else if !SetAside.Reason.allCases.contains(where: { name.hasSuffix($0.suffix) }) {
                        do throws(SpoolError) {
                            try self.setAside(name, .foreign)
                        } catch {
                            // The other files must be found all the same.
                            untrusted.append(error.message)
                        }
                    }
                }
            }
            if self.index.withLock({ $0.found(files) }) { self.directory.losses.add(1, ordering: .relaxed) }
            return untrusted
        }
        return (reported(), untrusted)
    }

    /// - Parameter count: the most records of a file that small files are merged into.
    /// - Throws: `full`, `shareFull`, `failed`; as ``init(directory:limit:)`` if the directory was replaced. No record is kept
    ///   then.
    package func append(
        _ records: [SpoolRecord],
        share: Share = .notifications,
        mergingUpTo count: Int = 256
    ) async throws(SpoolError) {
        try await thread.run { () throws(SpoolError) in
            let bytes = SpoolFile.encoded(records)
            let size = Int64(bytes.count)
            for (divisor, shares) in share.bounds {
                let bytes = self.index.withLock { $0.bytes(of: shares) }
                guard bytes + size <= self.limit / divisor else {
                    let taken = "dead letters take \(bytes) bytes of the spool \(self.directory.path)"
                    throw SpoolError(code: .shareFull, message: "\(taken), their share of its \(self.limit)")
                }
            }
            self.wanted.store(max(size, Self.leastRoom), ordering: .relaxed)
            try self.checkRoom(for: size)
            try self.write(bytes, share: share)
            if self.index.withLock({ $0.mustMerge() }) { self.mergeSmallFiles(upTo: count) }
        }
    }

    /// Checks that a file as large as the one that was refused last could be written now.
    ///
    /// - Throws: as ``append(_:share:)``.
    package func check() async throws(SpoolError) {
        try await thread.run { () throws(SpoolError) in
            let size = min(self.wanted.load(ordering: .relaxed), self.limit)
            try self.checkRoom(for: size)
            try self.directory.checkRoom(for: Int(size))
        }
    }

    /// The oldest records that fit one transaction: whole files, at least one if there is any. Several files together have
    /// at most `count` records and one mebibyte.
    ///
    /// - Returns: the records, and the files that were torn and set aside.
    package func oldest(
        _ part: Part = .waiting,
        atMost count: Int
    ) async throws(SpoolError) -> (batch: Batch, setAside: [SetAside]) {
        let batch = try await thread.run { () throws(SpoolError) in
            var batch = Batch()
            var bytes: Int64 = 0
            var hasSetAside = false
            let files = self.index.withLock { index in
                Array(index.files.lazy.filter { $0.isRefused == (part == .refused) }.prefix(max(1, count)))
            }
            for file in files {
                guard batch.files.isEmpty || bytes + file.size <= Self.batchBytes else { break }
                let reading: SpoolDirectory.Reading
                do throws(SpoolError) {
                    reading = try self.directory.read(file.name)
                } catch {
                    // What was found so far must be stored or reported.
                    guard !batch.files.isEmpty || hasSetAside else { throw error }
                    batch.unread = batch.unread ?? error
                    return batch
                }
                switch reading {
                case .content(let content):
                    guard let records = SpoolFile.decoded(content) else {
                        do throws(SpoolError) {
                            try self.setAside(file.name, .torn)
                            hasSetAside = true
                        } catch {
                            // On a full disk, perhaps: storing the other files makes room.
                            batch.unread = batch.unread ?? error
                            self.index.withLock { $0.postponed([file.name]) }
                        }
                        continue
                    }
                    guard batch.files.isEmpty || batch.records.count + records.count <= count else {
                        return batch
                    }
                    batch.files.append(file.name)
                    batch.records += records
                    batch.counts.append(records.count)
                    bytes += file.size
                case .unreadable(let error):
                    batch.unread = batch.unread ?? error
                    self.index.withLock { $0.postponed([file.name]) }
                case .gone:
                    self.index.withLock { $0.removed([file.name]) }
                    self.directory.losses.add(1, ordering: .relaxed)
                }
            }
            return batch
        }
        return (batch, reported())
    }

    /// From now on, all other files are read before these.
    package func postpone(_ batch: Batch) {
        index.withLock { $0.postponed(batch.files) }
    }

    /// Removes the records that the database has, and writes each one that it refuses into a file of its own, so that it
    /// does not delay others. A crash may leave some records twice, but loses none.
    ///
    /// - Parameter refused: positions of these records in the batch.
    package func remove(_ batch: Batch, keeping refused: Set<Int> = []) async throws(SpoolError) {
        try await thread.run { () throws(SpoolError) in
            var removed: [String] = []
            defer { self.index.withLock { $0.removed(removed) } }
            for (name, positions) in batch.parts {
                let kept = positions.filter(refused.contains)
                let file = SpoolIndex.File(name: name, size: 0)
                if positions.count == 1, kept.count == 1, file.isRefused {
                    self.index.withLock { $0.postponed([name]) }
                    continue
                }
                for position in kept {
                    try self.write(SpoolFile.encoded([batch.records[position]]), share: file.share, isRefused: true)
                }
                try self.directory.remove(name)
                removed.append(name)
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
        let rest = try await thread.run { () throws(SpoolError) in
            var written: [String] = []
            do throws(SpoolError) {
                for (name, positions) in batch.parts {
                    for position in positions.filter(forged.contains) {
                        // The same name if the batch is read again, so that there is one copy and one report.
                        let apart = "\(name).\(position - positions.lowerBound)\(SetAside.Reason.forged.suffix)"
                        let file = SpoolFile.encoded([batch.records[position]])
                        if try self.directory.write(file, as: apart) { written.append(apart) }
                    }
                }
            } catch {
                // They would not be reported. Their records are still in the files of the batch.
                for name in written { try self.directory.remove(name) }
                throw error
            }
            let setAside = written.map { SetAside(reason: .forged, path: self.directory.filePath($0)) }
            self.unreported.withLock { $0 += setAside }
            var rest = batch
            rest.records = batch.records.indices.filter { !forged.contains($0) }.map { batch.records[$0] }
            rest.counts = batch.parts.map { $0.positions.count { !forged.contains($0) } }
            return rest
        }
        return (rest, reported())
    }

    // MARK: - Private parts

    private func write(_ bytes: [UInt8], share: Share, isRefused: Bool = false) throws(SpoolError) {
        while true {
            let now = WallTime.now().microseconds
            let name = index.withLock { $0.nextName(now: now, share: share, isRefused: isRefused) }
            // Another process may have created a file of that name since the last scan.
            guard try directory.write(bytes, as: name) else { continue }
            return index.withLock { $0.added(SpoolIndex.File(name: name, size: Int64(bytes.count))) }
        }
    }

    /// Writes the small files of a share into one file.
    ///
    /// A notification that arrives alone gets a file of its own. In a long outage, a million of them would use up the inodes of
    /// the file system and siwad's memory, long before their bytes reach the limit. A crash, or a batch that was read before, may
    /// store some records twice, but loses none.
    ///
    /// - Parameter count: the most records in a file, which the database stores in one transaction.
    private func mergeSmallFiles(upTo count: Int) {
        do throws(SpoolError) {
            for share in Share.allCases { try mergeSmallFiles(of: share, upTo: count) }
        } catch {
            // On a full disk, perhaps. All records are in the files that are there, which are merged another time.
        }
    }

    private func mergeSmallFiles(of share: Share, upTo count: Int) throws(SpoolError) {
        var names: [String] = []
        var records: [SpoolRecord] = []
        for file in index.withLock({ $0.smallFiles(of: share) }) {
            // What can't be read stays for ``oldest(_:atMost:)``, which knows what to do with it.
            guard case .content(let content) = try directory.read(file.name),
                let decoded = SpoolFile.decoded(content)
            else { continue }
            if records.count + decoded.count > count {
                try replace(names, by: records, share)
                (names, records) = ([], [])
            }
            names.append(file.name)
            records += decoded
        }
        try replace(names, by: records, share)
    }

    private func replace(_ names: [String], by records: [SpoolRecord], _ share: Share) throws(SpoolError) {
        guard names.count > 1 else { return }
        try write(SpoolFile.encoded(records), share: share)
        var removed: [String] = []
        for name in names {
            do throws(SpoolError) {
                try directory.remove(name)
                removed.append(name)
            } catch {
                // Its records are there twice, which changes nothing.
                continue
            }
        }
        index.withLock { $0.removed(removed) }
    }

    private static let leastRoom: Int64 = 4_096

    private func checkRoom(for size: Int64) throws(SpoolError) {
        let bytes = bytes
        guard bytes + size <= limit else {
            let message = "the spool \(directory.path) holds \(bytes) bytes of \(limit), its limit"
            throw SpoolError(code: .full, message: message)
        }
    }

    private func setAside(_ name: String, _ reason: SetAside.Reason) throws(SpoolError) {
        let other = try directory.rename(name, appending: reason.suffix)
        index.withLock { $0.removed([name]) }
        unreported.withLock { $0.append(SetAside(reason: reason, path: directory.filePath(other))) }
    }

    /// The files that were set aside since the last call. Call it after the work, so that nothing is lost with a late result.
    private func reported() -> [SetAside] {
        unreported.withLock { exchange(&$0, with: []) }
    }
}

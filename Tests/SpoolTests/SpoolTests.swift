import Dispatch
import Glibc
import TestSupport
import Testing

@testable import Spool

@Suite("The spool")
struct SpoolTests {
    private func record(_ number: Int, bytes: Int = 10) -> SpoolRecord {
        SpoolRecord(
            receivedAt: Int64(number),
            keyID: "kid",
            body: [UInt8](repeating: UInt8(ascii: "a"), count: bytes)
        )
    }

    @Test("Batches are read oldest first, in whole files up to the limit, and are absent after their removal.")
    func order() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        for start in stride(from: 0, to: 12, by: 3) {
            try await spool.append((start..<start + 3).map { record($0) })
        }
        let (first, setAside) = try await spool.oldest(atMost: 7)
        #expect(first.records.map(\.receivedAt) == [0, 1, 2, 3, 4, 5])
        #expect(setAside.isEmpty)
        try await spool.remove(first)
        let rest = try await spool.oldest(atMost: 1).batch
        #expect(rest.records.map(\.receivedAt) == [6, 7, 8])
        try await spool.remove(rest)
        try await spool.remove(try await spool.oldest(atMost: 100).batch)
        #expect(spool.isEmpty)
        #expect(spool.bytes == 0)
        #expect(try directory.spoolFiles == [])
    }

    @Test("Small files are merged: each record is kept once, in its order, and with its kind.")
    func merging() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 10 << 20)
        for number in 0..<230 {
            for (index, share) in Spool.Share.allCases.enumerated() {
                try await spool.append([record(1_000 * index + number, bytes: 400)], share: share)
            }
        }
        let names = try directory.spoolFiles
        #expect(names.count < 330)
        for (index, share) in Spool.Share.allCases.enumerated() {
            let records = try names.filter { SpoolIndex.File(name: $0, size: 0).share == share }
                .flatMap { try #require(SpoolFile.decoded(directory.content($0))) }
            #expect(records.map(\.receivedAt) == (0..<230).map { Int64(1_000 * index + $0) })
        }
        // What is in memory is what is on disk.
        let bytes = spool.bytes
        let scan = try await spool.scan()
        #expect(scan.setAside.isEmpty && spool.bytes == bytes && spool.losses == 0)
        try await spool.remove(try await spool.oldest(atMost: 1_000).batch)
        #expect(spool.isEmpty)
        #expect(try directory.spoolFiles == [])
    }

    @Test("A merged file has no more records than one transaction may store.", arguments: [1, 7])
    func mergingUpTo(count: Int) async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        for number in 0..<100 { try await spool.append([record(number)], mergingUpTo: count) }
        let files = try directory.spoolFiles.map { try #require(SpoolFile.decoded(directory.content($0))) }
        #expect(files.map(\.count).max() == count)
        #expect(Set(files.joined().map(\.receivedAt)) == Set(0..<100))
        #expect(files.joined().count == 100)
    }

    @Test("A file that was cut, and one that was refused, are not merged.")
    func notMerged() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 10 << 20)
        try await spool.append([record(0)])
        let refused = try await spool.oldest(atMost: 1).batch
        try await spool.remove(refused, keeping: [0])
        try await spool.append([record(1)])
        let cut = try #require(try directory.spoolFiles.last)
        try directory.write(Array(try directory.content(cut).dropLast(5)), to: cut)
        for number in 2..<130 { try await spool.append([record(number)]) }
        #expect(try directory.spoolFiles.count < 40)
        #expect(try await spool.oldest(.refused, atMost: 1).batch.records == [record(0)])
        let (rest, setAside) = try await spool.oldest(atMost: 200)
        #expect(rest.records == (2..<130).map { record($0) })
        #expect(setAside.map(\.path) == [directory.file(cut + ".corrupt")])
    }

    @Test("Files of an ended process are kept, except for a file that it was writing.")
    func restart() async throws {
        let directory = try TemporaryDirectory()
        do {
            let spool = try Spool(directory: directory.path, limit: 1 << 20)
            try await spool.append([record(1)])
            spool.unlock()
        }
        try directory.write(Array("siwad-spool 1\njws".utf8), to: ".00000000000000000500.spool.unfinished")
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        #expect(try await spool.scan().setAside == [])
        #expect(try await spool.oldest(atMost: 10).batch.records == [record(1)])
        #expect(try directory.spoolFiles.count == 1)
    }

    @Test("A disk that does not answer is an error in time, for others directly, and what it completes later counts.")
    func hungDisk() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20, patience: .milliseconds(200))
        let disk = DispatchSemaphore(value: 0)
        spool.thread.queue.async { disk.wait() }
        let error = await #expect(throws: SpoolError.self) { try await spool.append([record(1)]) }
        #expect(error?.message == "the disk of the spool \(directory.path) does not answer")
        let patient = ContinuousClock.now
        for _ in 0..<100 {
            await #expect(throws: SpoolError.self) { try await spool.check() }
        }
        #expect(.now - patient < .seconds(10), "only the first waits")
        disk.signal()
        while (try? await spool.append([record(2)])) == nil { await Task.yield() }
        // On a busy machine, the second may be late too.
        let records = try? await spool.oldest(atMost: 10).batch.records
        #expect(records.map { $0.first == record(1) && $0.contains(record(2)) } ?? true)
    }

    @Test("A file that was set aside after its caller had given up is reported to the next one.")
    func lateReport() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20, patience: .milliseconds(200))
        while (try? await spool.append([record(1)])) == nil { await Task.yield() }
        let name = try #require(try directory.spoolFiles.first)
        try directory.write(Array("siwad-spool 1\nx".utf8), to: name)
        let disk = DispatchSemaphore(value: 0)
        spool.thread.queue.async { disk.wait() }
        await #expect(throws: SpoolError.self) { try await spool.oldest(atMost: 10) }
        disk.signal()
        var setAside: [Spool.SetAside] = []
        while setAside.isEmpty {
            if let scan = try? await spool.scan() { setAside = scan.setAside }
            await Task.yield()
        }
        #expect(setAside == [Spool.SetAside(reason: .torn, path: directory.file(name + ".corrupt"))])
    }

    @Test("Dead letters use at most a tenth of the limit, and unverified ones a twentieth.")
    func shares() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 100_000)
        func taken(_ share: Spool.Share) async throws -> Int64 {
            let before = spool.bytes
            var error: SpoolError?
            while error == nil {
                do throws(SpoolError) {
                    try await spool.append([record(1, bytes: 500)], share: share)
                } catch let refusal {
                    error = refusal
                }
            }
            #expect(error?.code == (share == .notifications ? .full : .shareFull))
            return spool.bytes - before
        }
        #expect(4_000...5_000 ~= (try await taken(.unverified)))
        #expect(4_500...6_000 ~= (try await taken(.letters)))
        #expect(spool.bytes <= 10_000)
        #expect(try await taken(.unverified) == 0)
        // A later process counts the same.
        spool.unlock()
        let next = try Spool(directory: directory.path, limit: 100_000)
        #expect(try await next.scan().setAside.isEmpty)
        await #expect(throws: SpoolError.self) { try await next.append([record(1, bytes: 500)], share: .letters) }
        // What the database refuses keeps its share.
        let batch = try await next.oldest(atMost: 100).batch
        try await next.remove(batch, keeping: Set(batch.records.indices))
        #expect(next.holds(.refused) && !next.holds(.waiting))
        await #expect(throws: SpoolError.self) { try await next.append([record(1, bytes: 500)], share: .letters) }
        try await next.append([record(1, bytes: 80_000)])
        #expect(try directory.spoolFiles.allSatisfy(SpoolIndex.isName))
    }

    @Test("Above the limit nothing is written, until there is room.")
    func limit() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1_000)
        try await spool.append([record(1, bytes: 700)])
        let error = await #expect(throws: SpoolError.self) { try await spool.append([record(2, bytes: 700)]) }
        #expect(error?.code == .full)
        #expect(try directory.spoolFiles.count == 1)
        try await spool.remove(try await spool.oldest(atMost: 1).batch)
        try await spool.append([record(2, bytes: 700)])
    }

    @Test("A batch of several files has at most one mebibyte.")
    func batchBytes() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 30)
        for number in 0..<40 { try await spool.append([record(number, bytes: 60_000)]) }
        try await spool.append((0..<30).map { record($0, bytes: 60_000) })
        var counts: [Int] = []
        while !spool.isEmpty {
            let batch = try await spool.oldest(atMost: 256).batch
            counts.append(batch.records.count)
            try await spool.remove(batch)
        }
        // The last file is larger than that.
        #expect(counts == [17, 17, 6, 30])
    }

    @Test("The loss of a file or of the directory is counted; a removal by siwad is not.")
    func losses() async throws {
        let parent = try TemporaryDirectory()
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        for number in 0..<3 { try await spool.append([record(number)]) }
        _ = try await spool.scan()
        try await spool.remove(try await spool.oldest(atMost: 1).batch)
        _ = try await spool.scan()
        #expect(spool.losses == 0)
        let file = try #require(try TemporaryDirectory.names(at: parent.file("spool")).last)
        try #require(unlink(parent.file("spool/\(file)")) == 0)
        _ = try await spool.scan()
        #expect(spool.losses == 1)
        try #require(rename(parent.file("spool"), parent.file("moved")) == 0)
        try await spool.followDirectory()
        #expect(spool.losses == 2)
    }

    @Test("A foreign file that can't be set aside does not hide the others.")
    func longName() async throws {
        let directory = try TemporaryDirectory()
        let name = String(repeating: "x", count: 250)
        do {
            let spool = try Spool(directory: directory.path, limit: 1 << 20)
            try await spool.append([record(1)])
            try directory.write([1], to: name)
            chmod(directory.file(name), 0o600)
            spool.unlock()
        }
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        let found = try await spool.scan()
        #expect(found.untrusted.count == 1 && found.untrusted[0].contains(name))
        #expect(try await spool.oldest(atMost: 9).batch.records == [record(1)])
    }

    @Test("A file that can't be read at present stays, and is read when it can be; the others are not delayed.")
    func unreadable() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try await spool.append([record(1)])
        try await spool.append([record(2)])
        let file = directory.file(try directory.spoolFiles[0])
        // No process can open a socket.
        #expect(rename(file, file + ".elsewhere") == 0)
        #expect(mknod(file, S_IFSOCK | 0o600, 0) == 0)
        let (batch, setAside) = try await spool.oldest(atMost: 10)
        #expect(batch.records == [record(2)])
        #expect(batch.unread != nil)
        #expect(setAside.isEmpty)
        try await spool.remove(batch)
        #expect(!spool.isEmpty)
        #expect(rename(file + ".elsewhere", file) == 0)
        let again = try await spool.oldest(atMost: 10).batch
        #expect(again.records == [record(1)])
        #expect(again.unread == nil)
    }

    @Test("A file with the largest possible stamp is foreign, and later names still sort correctly.")
    func lastStamp() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try directory.write([], to: "09223372036854775807.spool")
        #expect(try await spool.scan().setAside.map(\.reason) == [.foreign])
        try await spool.append([record(1)])
        #expect(try await spool.oldest(atMost: 10).batch.records == [record(1)])
    }

    @Test("A torn file is renamed to .corrupt, and the others are read.")
    func torn() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        for number in 0..<3 { try await spool.append([record(number)]) }
        let names = try directory.spoolFiles
        try directory.write(Array(try directory.content(names[1]).dropLast(5)), to: names[1])
        let (batch, setAside) = try await spool.oldest(atMost: 10)
        #expect(batch.records.map(\.receivedAt) == [0, 2])
        #expect(setAside == [Spool.SetAside(reason: .torn, path: directory.file(names[1] + ".corrupt"))])
        try await spool.remove(batch)
        #expect(try directory.spoolFiles == [names[1] + ".corrupt"])
        #expect(try await spool.scan().setAside == [])
        #expect(spool.isEmpty)
    }

    @Test("A foreign file is set aside, also two of one name; directories and hidden files stay.")
    func foreign() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try directory.write([1], to: "notes.txt")
        try directory.write([1], to: ".hidden")
        try #require(mkdir(directory.file("lost+found"), 0o700) == 0)
        let setAside = try await spool.scan().setAside
        #expect(setAside == [Spool.SetAside(reason: .foreign, path: directory.file("notes.txt.foreign"))])
        try directory.write([2], to: "notes.txt")
        #expect(try await spool.scan().setAside.map(\.path) == [directory.file("notes.txt.2.foreign")])
        #expect(try directory.spoolFiles == [".hidden", "lost+found", "notes.txt.2.foreign", "notes.txt.foreign"])
        #expect(try directory.content("notes.txt.foreign") == [1])
    }

    @Test("A scan finds a file that is back, and forgets one that is gone.")
    func scan() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try await spool.append([record(1)])
        let name = try #require(try directory.spoolFiles.first)
        let content = try directory.content(name)
        unlink(directory.file(name))
        #expect(try await spool.oldest(atMost: 1).batch.files == [])
        #expect(spool.isEmpty)
        try directory.write(content, to: name)
        _ = try await spool.scan()
        #expect(try await spool.oldest(atMost: 1).batch.records == [record(1)])
    }

    @Test(
        "On a full disk a write fails and leaves no file; with room it succeeds.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a small file system")
    )
    func fullDisk() async throws {
        let directory = try TemporaryDirectory(capacity: 64 * 1_024)
        let spool = try Spool(directory: directory.path, limit: 1 << 30)
        try await spool.append([record(1, bytes: 20_000)])
        let error = await #expect(throws: SpoolError.self) { try await spool.append([record(2, bytes: 60_000)]) }
        #expect(error?.code == .failed)
        #expect(error?.message.hasSuffix("No space left on device; make room there") == true)
        #expect(try directory.spoolFiles.count == 1)
        try await spool.append([record(3, bytes: 10_000)])
        #expect(try await spool.oldest(atMost: 9).batch.records.map(\.receivedAt) == [1, 3])
        try await spool.check()
        #expect(try directory.spoolFiles.count == 2)
    }
}

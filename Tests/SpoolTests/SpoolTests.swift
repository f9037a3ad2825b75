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

    private func mode(_ path: String) -> mode_t {
        var status = stat()
        return lstat(path, &status) == 0 ? status.st_mode & 0o777 : 0
    }

    @Test("Batches come back oldest first, whole files up to the wanted number, and are gone once removed.")
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

    @Test("What one process left is there for the next one; what it was writing when it ended is not.")
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

    @Test("Dead letters take no more than a tenth of the limit, of which nothing unverified takes more than half.")
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
        try await next.setApart(Set(batch.records.indices), of: batch)
        #expect(next.holds(.refused) && !next.holds(.waiting))
        await #expect(throws: SpoolError.self) { try await next.append([record(1, bytes: 500)], share: .letters) }
        try await next.append([record(1, bytes: 80_000)])
        #expect(try directory.spoolFiles.allSatisfy(SpoolIndex.isName))
    }

    @Test("Over the limit nothing is taken, and everything is again once there is room.")
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

    @Test("The directory is for one's own user alone, and so are the files.")
    func permissions() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        try await spool.append([record(1)])
        #expect(mode(path) == 0o700)
        let name = try #require(try await spool.oldest(atMost: 1).batch.files.first)
        #expect(mode("\(path)/\(name)") == 0o600)
    }

    @Test("A directory that others may enter is made private, unless it serves others as well.")
    func makesPrivate() throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("open"), 0o755) == 0)
        _ = try Spool(directory: parent.file("open"), limit: 1 << 20)
        #expect(mode(parent.file("open")) == 0o700)
        chmod(parent.path, 0o755)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(mode(parent.path) == 0o755)
    }

    @Test("A directory with foreign files is never adopted: neither its mode nor a name in it changes.")
    func foreignDirectory() throws {
        let directory = try TemporaryDirectory()
        try directory.write(Array("listen: 0.0.0.0".utf8), to: "siwad.yaml")
        try directory.write([], to: ".bashrc")
        chmod(directory.path, 0o755)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains(".siwad-spool") == true, "\(error?.message ?? "")")
        #expect(mode(directory.path) == 0o755)
        #expect(try directory.names == [".bashrc", "siwad.yaml"])
    }

    @Test(
        "A directory that others can write is not used, and stays as it is.",
        arguments: [0o777, 0o1777, 0o770, 0o720]
    )
    func writableDirectory(_ mode: Int) throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        chmod(parent.file("spool"), mode_t(mode))
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains("can write") == true, "\(error?.message ?? "")")
        #expect(self.mode(parent.file("spool")) == mode_t(mode) & 0o777)
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [])
    }

    @Test("A directory below one that others can write is not used, and none is made there.")
    func writableParent() throws {
        let parent = try TemporaryDirectory()
        chmod(parent.path, 0o777)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.contains("\(parent.path) ") == true, "\(error?.message ?? "")")
        #expect(try parent.names == [])
    }

    @Test(
        "A directory of another user's, or below one, is not used.",
        .enabled(if: geteuid() == 0, "needs root, to give a directory away"),
        arguments: ["spool", "spool/below"]
    )
    func othersDirectory(_ name: String) throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("spool"), 0o755) == 0)
        try #require(chown(parent.file("spool"), 12_345, 12_345) == 0)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file(name), limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [])
    }

    @Test("A directory that siwad made is marked, and is used again when it holds what waits.")
    func marker() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        do {
            let spool = try Spool(directory: path, limit: 1 << 20)
            try await spool.append([record(1)])
            spool.unlock()
        }
        #expect(try TemporaryDirectory.names(at: path).first == ".siwad-spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        #expect(try await spool.scan().setAside == [])
        #expect(try await spool.oldest(atMost: 1).batch.records == [record(1)])
    }

    @Test(
        "A path through a symbolic link of another user's is not used; one through a link of siwad's is.",
        .enabled(if: geteuid() == 0, "needs root, to give a link away")
    )
    func symbolicLink() throws {
        let parent = try TemporaryDirectory()
        try #require(mkdir(parent.file("real"), 0o700) == 0)
        try #require(symlink("real", parent.file("link")) == 0)
        try #require(symlink("link/spool", parent.file("second")) == 0)
        for name in ["link/spool", "link/../real/spool", "second"] {
            try Spool(directory: parent.file(name), limit: 1 << 20).unlock()
        }
        try #require(lchown(parent.file("link"), 12_345, 12_345) == 0)
        for name in ["link/spool", "link/../real/spool", "second"] {
            let error = #expect(throws: SpoolError.self) { try Spool(directory: parent.file(name), limit: 1 << 20) }
            #expect(error?.code == .unusable)
            #expect(error?.message.contains("symbolic link \(parent.path)/link ") == true, "\(error?.message ?? "")")
        }
        try Spool(directory: parent.file("real/spool"), limit: 1 << 20).unlock()
        try #require(symlink("loop", parent.file("loop")) == 0)
        #expect(throws: SpoolError.self) { try Spool(directory: parent.file("loop"), limit: 1 << 20) }
    }

    @Test("What is done with a file is done in the directory that was opened, not where the path leads by now.")
    func heldDirectory() async throws {
        let parent = try TemporaryDirectory()
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        try await spool.append([record(1)])
        let batch = try await spool.oldest(atMost: 1).batch
        let name = try #require(batch.files.first)
        try #require(rename(parent.file("spool"), parent.file("moved")) == 0)
        try #require(mkdir(parent.file("spool"), 0o700) == 0)
        try parent.write([1], to: "spool/\(name)")
        try await spool.remove(batch)
        #expect(try TemporaryDirectory.names(at: parent.file("moved")) == [".siwad-spool"])
        #expect(try TemporaryDirectory.names(at: parent.file("spool")) == [name])
    }

    @Test("A marker of another user's is not trusted, and the error says whose it is.", .enabled(if: geteuid() == 0))
    func othersMarker() throws {
        let directory = try TemporaryDirectory()
        try directory.write([], to: ".siwad-spool")
        try #require(chown(directory.file(".siwad-spool"), 12_345, 12_345) == 0)
        let checked = #expect(throws: SpoolError.self) { try Spool.check(directory: directory.path) }
        let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
        #expect(error == checked)
        #expect(error?.message.contains("belongs to user id 12345") == true, "\(error?.message ?? "")")
    }

    @Test("The check accepts what would be used, refuses what would not, and changes nothing.")
    func check() throws {
        let parent = try TemporaryDirectory()
        try Spool.check(directory: parent.file("missing"))
        #expect(try parent.names.isEmpty)
        try #require(mkdir(parent.file("spool"), 0o755) == 0)
        try Spool.check(directory: parent.file("spool"))
        #expect(mode(parent.file("spool")) == 0o755)
        let spool = try Spool(directory: parent.file("spool"), limit: 1 << 20)
        // One that is in use too: the doctor looks while the daemon runs.
        try Spool.check(directory: parent.file("spool"))
        spool.unlock()
        try parent.write([1], to: "notes")
        #expect(throws: SpoolError.self) { try Spool.check(directory: parent.path) }
        chmod(parent.path, 0o777)
        #expect(throws: SpoolError.self) { try Spool.check(directory: parent.file("spool")) }
    }

    @Test(
        "A full disk that has no room for the marker is temporary: it needs no other configuration.",
        .enabled(if: TemporaryDirectory.canMount, "needs root, to mount a small file system")
    )
    func fullForMarker() throws {
        let disk = try TemporaryDirectory(capacity: 64 * 1_024)
        try #require(mkdir(disk.file("spool"), 0o700) == 0)
        try #require(mount("tmpfs", disk.path, "tmpfs", UInt(MS_REMOUNT), "nr_inodes=2") == 0)
        let error = #expect(throws: SpoolError.self) { try Spool(directory: disk.file("spool"), limit: 1 << 20) }
        #expect(error?.code == .failed)
        #expect(error?.message.contains("make room there") == true, "\(error?.message ?? "")")
    }

    @Test("However many large records wait, a batch of several files has no more than a mebibyte.")
    func batchBytes() async throws {
        let spool = try Spool(directory: try TemporaryDirectory().path, limit: 1 << 30)
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

    @Test("The loss of a file or of the directory is noticed; what siwad removes is no loss.")
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

    @Test("A file is never written over another one of the same name.")
    func noReplacement() throws {
        let parent = try TemporaryDirectory()
        let directory = try SpoolDirectory(parent.file("spool"))
        for content in [[1], [2]] as [[UInt8]] {
            // The result is not tested here.
            _ = try? directory.write(content, as: "00000000000000000001.spool")
        }
        let kept = try TemporaryDirectory.names(at: parent.file("spool")).filter { !$0.hasPrefix(".") }
        #expect(kept == ["00000000000000000001.spool"])
        #expect(try parent.content("spool/00000000000000000001.spool") == [1])
    }

    @Test("A second one is refused while the first is open.")
    func lock() throws {
        let directory = try TemporaryDirectory()
        do {
            let first = try Spool(directory: directory.path, limit: 1 << 20)
            let error = #expect(throws: SpoolError.self) { try Spool(directory: directory.path, limit: 1 << 20) }
            #expect(error?.code == .inUse)
            first.unlock()
        }
        _ = try Spool(directory: directory.path, limit: 1 << 20)
    }

    @Test(
        "A place that can't be a directory is an error that says what to do.",
        arguments: ["/nowhere/spool", "/dev/null"]
    )
    func unusable(_ path: String) {
        let error = #expect(throws: SpoolError.self) { try Spool(directory: path, limit: 1 << 20) }
        #expect(error?.code == .unusable)
        #expect(error?.message.hasPrefix("the spool directory \(path) can't be used: ") == true)
    }

    @Test("A file that can't be read at present stays where it is; the others are read, and it is once it can be.")
    func unreadable() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try await spool.append([record(1)])
        try await spool.append([record(2)])
        let file = directory.file(try directory.spoolFiles[0])
        // A socket can't be opened, whoever asks.
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

    @Test("A file named as if from the end of time is nothing of ours, and spoils no name that comes later.")
    func lastStamp() async throws {
        let directory = try TemporaryDirectory()
        let spool = try Spool(directory: directory.path, limit: 1 << 20)
        try directory.write([], to: "09223372036854775807.spool")
        #expect(try await spool.scan().setAside.map(\.reason) == [.foreign])
        try await spool.append([record(1)])
        #expect(try await spool.oldest(atMost: 10).batch.records == [record(1)])
    }

    @Test("A torn file is set aside under a name that says so, and the others are read.")
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

    @Test("A foreign file is set aside and kept, twice under one name; directories and hidden files are left alone.")
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

    @Test("A file that came back is found again, one that went is forgotten.")
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

    @Test("A directory that is removed and made again is used, and locked, again.")
    func replaced() async throws {
        let parent = try TemporaryDirectory()
        let path = parent.file("spool")
        let spool = try Spool(directory: path, limit: 1 << 20)
        try #require(unlink(path + "/.siwad-spool") == 0)
        try #require(rmdir(path) == 0)
        try await spool.append([record(1)])
        #expect(try await spool.oldest(atMost: 1).batch.records == [record(1)])
        let error = #expect(throws: SpoolError.self) { try Spool(directory: path, limit: 1 << 20) }
        #expect(error?.code == .inUse)
    }

    @Test(
        "On a full disk nothing is promised and nothing is left behind; with room it goes on.",
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

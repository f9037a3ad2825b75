import Testing

@testable import Spool

@Suite("The files of a spool")
struct SpoolIndexTests {
    private func index(_ names: [String]) -> SpoolIndex {
        var index = SpoolIndex()
        index.found(names.map { SpoolIndex.File(name: $0, size: 10) })
        return index
    }

    @Test("A new name sorts after all others, even if the clock goes back.")
    func names() {
        var index = index(["00000000000000000500.spool"])
        let names = [600, 600, 5, 700].map { index.nextName(now: $0) }
        #expect(names == names.sorted())
        #expect(names.first == "00000000000000000600.spool")
        #expect(index.nextName(now: 3) > "00000000000000000500.spool")
        #expect(names.allSatisfy(SpoolIndex.isName))
    }

    @Test(
        "Only names of the right form belong to siwad.",
        arguments: [
            "x.spool", "00000000000000000500.spool.corrupt", "0000000000000000050x.spool", "500.spool", "٠٠٠.spool",
        ]
    )
    func foreign(_ name: String) {
        #expect(!SpoolIndex.isName(name))
    }

    @Test("A refused file has a name of its own, and is found by it.")
    func refused() {
        var index = index(["00000000000000000500.spool", "00000000000000000400.refused.spool"])
        #expect(index.files.map(\.isRefused) == [true, false])
        let name = index.nextName(now: 3, isRefused: true)
        #expect(name == "00000000000000000501.refused.spool")
        #expect(SpoolIndex.isName(name))
    }

    @Test("A postponed file is last, also after another scan.")
    func postponed() {
        let names = ["1", "2", "3"].map { "0000000000000000000\($0).spool" }
        var index = index(names.reversed())
        #expect(index.files.map(\.name) == names)
        index.postponed([names[0]])
        index.found(names.map { SpoolIndex.File(name: $0, size: 10) })
        #expect(index.files.map(\.name) == [names[1], names[2], names[0]])
        #expect(index.bytes == 30)
        index.removed([names[1]])
        #expect(index.bytes == 20)
        index.removed([names[0]])
        #expect(index.files.map(\.name) == [names[2]])
        index.removed(["unknown"])
        #expect(index.bytes == 10)
    }

    @Test("Enough small files of one kind are merged, and refused ones never.")
    func smallFiles() {
        var index = SpoolIndex()
        func add(_ count: Int, _ share: Spool.Share = .notifications, size: Int64 = 1_000, isRefused: Bool = false) {
            for _ in 0..<count {
                let name = index.nextName(now: 1, share: share, isRefused: isRefused)
                index.added(SpoolIndex.File(name: name, size: size))
            }
        }
        add(SpoolIndex.mergedFiles - 1)
        add(9, isRefused: true)
        add(9, size: 16_384)
        let early = index.mustMerge()
        #expect(!early && index.smallFiles(of: .notifications) == [])
        add(1, .letters)
        let answers = [index.mustMerge(), index.mustMerge()]
        #expect(answers == [true, false])
        #expect(index.smallFiles(of: .notifications) == [])
        add(1)
        let small = index.smallFiles(of: .notifications)
        #expect(small.count == SpoolIndex.mergedFiles)
        #expect(small.allSatisfy { $0.share == .notifications && !$0.isRefused && $0.size == 1_000 })
    }
}

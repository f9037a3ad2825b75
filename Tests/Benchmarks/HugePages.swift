import FoundationEssentials

/// Huge pages for PostgreSQL's buffers. With ordinary pages of four kilobytes, a new backend takes a page fault for nearly
/// every person of a large database; a server with gigabytes of buffers is run with huge pages for that reason.
///
/// PostgreSQL takes them by itself where the kernel has reserved enough (`huge_pages = try`, its default).
enum HugePages {
    private static let setting = "/proc/sys/vm/nr_hugepages"

    /// Pages that the kernel holds in reserve.
    struct Reservation {
        fileprivate let before: String

        /// Reserves no more than before. What a server has taken stays its own until it ends.
        func release() { HugePages.write(before) }
    }

    /// Has the kernel reserve what a server with such buffers takes; nil: that is root's to do, or it is done already.
    static func reserve(forBuffersOf mebibytes: Int) -> Reservation? {
        let before = Machine.read(setting).filter(\.isNumber)
        // Beside the buffers the server shares what it needs to find and to lock them.
        let wanted = (mebibytes + mebibytes / 12 + 256) / pageMebibytes
        guard let pages = Int(before), pages < wanted, write("\(wanted)") else { return nil }
        return Reservation(before: before)
    }

    /// How much of the memory lies in huge pages, for people.
    static var description: String {
        let pages = Int(Machine.field("HugePages_Total", of: "/proc/meminfo")) ?? 0
        return pages > 0 ? "\(pages * pageMebibytes / 1_024) GiB in huge pages" : "no huge pages"
    }

    /// How large one is.
    static var bytes: Int { pageMebibytes << 20 }

    private static var pageMebibytes: Int {
        let size = Machine.field("Hugepagesize", of: "/proc/meminfo").split(separator: " ").first
        return max(1, (size.flatMap { Int($0) } ?? 2_048) / 1_024)
    }

    @discardableResult
    private static func write(_ pages: String) -> Bool {
        // Not atomically: this is no file that could be replaced.
        (try? Data(pages.utf8).write(to: URL(filePath: setting))) != nil
    }
}

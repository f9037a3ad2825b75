import Basics
import Glibc

/// The standard `process_*` metrics, read from `/proc` at each scrape. Metrics that cannot be read are left out.
enum ProcessMetrics {
    static func append(to text: inout PrometheusText) {
        append("process_open_fds", "Open file descriptors.", openDescriptors(), to: &text)
        append("process_max_fds", "File descriptors that may be open.", descriptorLimit(), to: &text)
        guard let status = ProcessStatus(stat: file("/proc/self/stat")) else { return }
        let ticks = Double(sysconf(Int32(_SC_CLK_TCK)))
        let seconds = Double(status.processorTicks) / ticks
        let help = "Processor time used, in user and system mode."
        text.append("process_cpu_seconds_total", help, .counter, [Sample(value: seconds)])
        let page = Double(sysconf(Int32(_SC_PAGESIZE)))
        append("process_resident_memory_bytes", "Memory in use.", Double(status.residentPages) * page, to: &text)
        append("process_virtual_memory_bytes", "Address space in use.", Double(status.virtualBytes), to: &text)
        append("process_threads", "Threads of the process.", Double(status.threads), to: &text)
        if let boot = bootTime(stat: file("/proc/stat")) {
            let start = boot + Double(status.startTicks) / ticks
            append("process_start_time_seconds", "When the process started, since 1970.", start, to: &text)
        }
    }

    /// Returns when the machine started, in seconds since 1970, from the text of `/proc/stat`.
    static func bootTime(stat: String) -> Double? {
        for line in stat.split(separator: "\n") where line.hasPrefix("btime ") {
            return Double(line.dropFirst(6))
        }
        return nil
    }

    private static func append(_ name: String, _ help: String, _ value: Double?, to text: inout PrometheusText) {
        guard let value else { return }
        text.append(name, help, .gauge, [Sample(value: value)])
    }

    private static func openDescriptors() -> Double? {
        guard let folder = opendir("/proc/self/fd") else { return nil }
        defer { closedir(folder) }
        var entries = 0
        while readdir(folder) != nil {
            entries += 1
        }
        // Without `.`, `..` and the descriptor of the listing itself.
        return Double(max(0, entries - 3))
    }

    private static func descriptorLimit() -> Double? {
        var limit = rlimit()
        guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return nil }
        return limit.rlim_cur == rlim_t.max ? .infinity : Double(limit.rlim_cur)
    }

    private static func file(_ path: String) -> String {
        // The metrics that a file holds are left out if it cannot be read.
        String(decoding: (try? readFile(atPath: path)) ?? [], as: UTF8.self)
    }
}

/// The fields of `/proc/self/stat` that metrics need; proc(5).
struct ProcessStatus: Equatable {
    /// In user and in system mode.
    let processorTicks: Int64
    let threads: Int64
    /// Since the machine started.
    let startTicks: Int64
    let virtualBytes: Int64
    let residentPages: Int64

    /// Parses the line of `/proc/<pid>/stat`. The command's name is in parentheses and may contain any character.
    init?(stat: String) {
        guard let name = stat.lastIndex(of: ")") else { return nil }
        let fields = stat[stat.index(after: name)...].split(whereSeparator: { $0 == " " || $0 == "\n" })
            .map { Int64($0) }
        guard
            fields.count > 21,
            let user = fields[11], let system = fields[12], let threads = fields[17],
            let start = fields[19], let virtual = fields[20], let resident = fields[21]
        else { return nil }
        self.processorTicks = user + system
        self.threads = threads
        self.startTicks = start
        self.virtualBytes = virtual
        self.residentPages = resident
    }
}

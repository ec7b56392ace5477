/* Part of stub.c: what tests say, one line a change; README.md lists them. */
static void happened(int gpu, unsigned long long kind, unsigned long long data) {
    for (int i = 0; i < set_count && event_count < EVENTS; i++)
        if (sets[i].used && sets[i].session == session && sets[i].members >> gpu & 1)
            events[event_count++] = (Event){&sets[i], gpu, kind, data};
}
static int field_line(Gpu *gpu, unsigned id, unsigned scope, int ret, int type, double value, double per_second) {
    unsigned i = 0;
    while (i < gpu->field_count && (gpu->fields[i].id != id || gpu->fields[i].scope != scope)) i++;
    if (i == FIELDS) return 1;
    if (i == gpu->field_count) gpu->field_count++;
    gpu->fields[i] = (Field){id, scope, ret, type, value, per_second};
    return 0;
}
/* 0 where the line was understood. */
int stub_line(const char *line) {
    char word[32], a[96], b[96];
    int g = 0, n, ret, type;
    unsigned id, scope;
    double value, rate;
    unsigned long long x, y, z;
    if (sscanf(line, "%31s %d", word, &g) < 1) return 1;
    if (!strcmp(word, "reset")) {
        memset(gpus, 0, sizeof gpus); memset(sets, 0, sizeof sets); memset(handles, 0, sizeof handles);
        gpu_count = session = open_count = event_count = set_count = return_count = 0;
        loaded = 1; init_ret = 0; fabric_version = 3; now_us = call_us = 0;
        return 0;
    }
    if (!strcmp(word, "driver")) { loaded = g; if (!g) open_count = 0; return 0; }
    if (!strcmp(word, "init")) return sscanf(line, "%*s %d", &init_ret) != 1;
    if (!strcmp(word, "advance")) return sscanf(line, "%*s %lf", &value) == 1 ? (now_us += value, 0) : 1;
    if (!strcmp(word, "call")) return sscanf(line, "%*s %lf", &call_us) != 1;
    if (!strcmp(word, "fabric-version")) { fabric_version = g; return 0; }
    if (g < 0 || g >= GPUS) return 1;
    Gpu *gpu = &gpus[g];
    if (!strcmp(word, "gpu")) {
        if (sscanf(line, "%*s %*d %95s %31s %95[^\n]", gpu->uuid, gpu->bus, gpu->name) != 3) return 1;
        gpu->minor = g; gpu->power = 350000; gpu->mig = -1; gpu->fabric_ret = NOT_SUPPORTED;
        if (g >= gpu_count) gpu_count = g + 1;
        return 0;
    }
    if (!strcmp(word, "memory")) {
        if (sscanf(line, "%*s %*d %llu %llu %llu", &x, &y, &z) != 3) return 1;
        gpu->total = x; gpu->used = y; gpu->reserved = z;
        return 0;
    }
    if (!strcmp(word, "link")) {
        if (sscanf(line, "%*s %*d %d %d %d %d %31s", &n, &ret, &id, &type, a) != 5 || n < 0 || n >= LINKS) return 1;
        gpu->link[n] = (Link){1, (int)id, type, ret, ""};
        snprintf(gpu->link[n].remote, 32, "%.31s", a);
        if (n >= gpu->links) gpu->links = n + 1;
        return 0;
    }
    if (!strcmp(word, "field")) {
        if (sscanf(line, "%*s %*d %u %u %d %d %lf %lf", &id, &scope, &ret, &type, &value, &rate) != 6) return 1;
        return field_line(gpu, id, scope, ret, type, value, rate);
    }
    if (!strcmp(word, "fabric")) {
        if (sscanf(line, "%*s %*d %d %u %u %llx %llu", &ret, &id, &scope, &x, &y) != 5) return 1;
        gpu->fabric_ret = ret; gpu->fabric_state = id; gpu->fabric_status = scope;
        gpu->fabric_mask = (unsigned)x; gpu->fabric_summary = (unsigned char)y;
        return 0;
    }
    if (!strcmp(word, "mig")) return sscanf(line, "%*s %*d %d", &gpu->mig) != 1;
    if (!strcmp(word, "part")) {
        if (sscanf(line, "%*s %*d %d %u %u %llu %95s %95[^\n]", &n, &id, &scope, &x, a, b) != 6) return 1;
        if (n < 0 || n >= PARTS) return 1;
        gpu->part[n] = (Part){"", "", x, id, scope};
        if (strcmp(a, "-")) snprintf(gpu->part[n].uuid, 96, "%s", a);
        snprintf(gpu->part[n].name, 96, "%s", b);
        if ((unsigned)n >= gpu->part_count) gpu->part_count = (unsigned)n + 1;
        return 0;
    }
    if (!strcmp(word, "process")) {
        if (sscanf(line, "%*s %*d %u %llu", &id, &x) != 2 || gpu->process_count >= PROCESSES) return 1;
        gpu->process[gpu->process_count].pid = id; gpu->process[gpu->process_count++].used = x;
        return 0;
    }
    if (!strcmp(word, "returns")) {
        if (sscanf(line, "%*s %*d %63s %d", a, &ret) != 2 || return_count >= RETURNS) return 1;
        for (n = 0; n < return_count && (returns[n].gpu != g || strcmp(returns[n].name, a)); n++) {}
        if (n == return_count) return_count++;
        returns[n].gpu = g; returns[n].ret = ret; snprintf(returns[n].name, 64, "%.63s", a);
        return 0;
    }
    if (!strcmp(word, "lose")) { gpu->lost = 1; gpu->lost_session = session; return 0; }
    if (!strcmp(word, "found")) { gpu->lost = 0; return 0; }
    if (!strcmp(word, "event")) {
        if (sscanf(line, "%*s %*d %llu %llu", &x, &y) != 2) return 1;
        happened(g, x, y);
        return 0;
    }
    return 1;
}
static void script(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) if (stub_line(line)) { fprintf(stderr, "stub: %s", line); abort(); }
    if (file) fclose(file);
}

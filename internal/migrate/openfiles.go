package migrate

// keepersOpenFiles is LimitNOFILE of berth-keeper.service, which containers have where no key says another one.
const keepersOpenFiles = "1048576"

// OpenFiles says that containers get another limit of open files than from containerd, if that is so: containers have
// the limits of the unit that starts them. The unit of containerd 2 names none, so that systemd's default holds. root
// is where the machine's file system is; "" stands for /.
func OpenFiles(p *Plan, root string) {
	if p.Runtime != Containerd {
		return
	}
	for _, unit := range services[p.ID()] {
		files := readUnit(root, unit)
		if len(files) == 0 {
			continue
		}
		at, limit := files[0].path+": no LimitNOFILE", ""
		for _, f := range files {
			for _, key := range f.keys {
				if key.name == "LimitNOFILE" {
					at, limit = f.path+": LimitNOFILE="+key.value, key.value
				}
			}
		}
		has, keep := "of "+limit, limit
		switch limit {
		case keepersOpenFiles, keepersOpenFiles + ":" + keepersOpenFiles:
			return
		case "":
			has, keep = "of systemd (1024:524288, unless DefaultLimitNOFILE says otherwise)", "1024:524288"
		case "infinity":
			has, keep = "of the kernel (sysctl fs.nr_open)", "SOFT:HARD"
		}
		p.left(at, "containers have had the limit of open files %s. Those of Berth have %s, soft and hard. To keep the old "+
			"one: ulimits = [\"nofile=%s\"]", has, keepersOpenFiles, keep)
	}
}

package pod

// CgroupDriver is cgroupfs or systemd.
func (m *Manager) CgroupDriver() string {
	if m.cfg.SystemdCgroup {
		return "systemd"
	}
	return "cgroupfs"
}

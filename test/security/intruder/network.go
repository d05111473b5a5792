package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func init() {
	commands["abstract"] = abstract
	commands["advertise"] = advertise
	commands["datagram"] = datagram
	commands["hold"] = hold
	commands["peers"] = peers
}

// abstract connects to each abstract socket that it can see, and names those that answer.
func abstract([]string) error {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || !strings.HasPrefix(fields[7], "@") {
			continue
		}
		for _, network := range []string{"unix", "unixpacket", "unixgram"} {
			if c, err := net.Dial(network, fields[7]); err == nil {
				c.Close()
				fmt.Println("CONNECTED", fields[6], fields[7])
				break
			}
		}
	}
	return lines.Err()
}

// hold NAME listens to an abstract socket for as long as it lives.
func hold(args []string) error {
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	fmt.Println("HELD", args[0])
	_, err = listener.Accept()
	return err
}

// frames sends Ethernet frames of a container's interface.
type frames struct {
	fd, index int
	own       net.HardwareAddr
}

func open(kind uint16) (*frames, error) {
	iface, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(kind>>8|kind<<8))
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return &frames{fd, iface.Index, iface.HardwareAddr}, nil
}

func (f *frames) send(to net.HardwareAddr, kind uint16, payload []byte) error {
	frame := append(append([]byte{}, to...), f.own...)
	frame = append(binary.BigEndian.AppendUint16(frame, kind), payload...)
	return unix.Sendto(f.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: f.index, Halen: 6})
}

// checksum is the Internet's.
func checksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, part := range parts {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// advertise COUNT says so often, to all on the link, that this container is their router, and that theirs is the prefix
// 2001:db8:bad::/64.
func advertise(args []string) error {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	f, err := open(unix.ETH_P_IPV6)
	if err != nil {
		return err
	}
	source, all := netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1")
	prefix := netip.MustParseAddr("2001:db8:bad::")
	message := []byte{134, 0, 0, 0, 64, 0, 0x70, 0x80, 0, 0, 0, 0, 0, 0, 0, 0} // router for 8 hours
	message = append(append(message, 1, 1), f.own...)
	message = append(message, 3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	message = append(message, prefix.AsSlice()...)
	pseudo := append(append(source.AsSlice(), all.AsSlice()...), 0, 0, 0, byte(len(message)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(message[2:], checksum(pseudo, message))
	packet := []byte{0x60, 0, 0, 0, 0, byte(len(message)), 58, 255}
	packet = append(append(append(packet, source.AsSlice()...), all.AsSlice()...), message...)
	for range count {
		if err := f.send(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, unix.ETH_P_IPV6, packet); err != nil {
			return err
		}
	}
	return nil
}

// datagram MAC FROM:PORT TO:PORT TEXT sends a frame with a UDP datagram, whatever the addresses are.
func datagram(args []string) error {
	mac, err := net.ParseMAC(args[0])
	if err != nil {
		return err
	}
	from, to := netip.MustParseAddrPort(args[1]), netip.MustParseAddrPort(args[2])
	f, err := open(unix.ETH_P_IP)
	if err != nil {
		return err
	}
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(args[3])))
	udp = append(append(udp, 0, 0), args[3]...) // no checksum
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return f.send(mac, unix.ETH_P_IP, append(ip, udp...))
}

// peers PORT says who connects to a port by TCP, or sends to it by UDP.
func peers(args []string) error {
	listener, err := net.Listen("tcp4", ":"+args[0])
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp4", ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			fmt.Println("UDP", from, string(buffer[:n]))
		}
	}()
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		fmt.Println("TCP", c.RemoteAddr())
		_, _ = fmt.Fprintln(c, "hello from", args[0])
		c.Close()
	}
}
